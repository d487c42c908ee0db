"""Fixtures every test may use. A test that needs Docker fails without it; nothing is skipped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from agent_tools.runtime import image
from agent_tools.runtime.docker import DockerEngine
from agent_tools.runtime.owner import Owner
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.doubles import ProcessEngine


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test."""
    for name in ("M6_CODE_INTERPRETER_WORK_DIR", "M6_CODE_INTERPRETER_STATIC_URL", "DEFAULT_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("QWEN_AGENT_DEFAULT_WORKSPACE", "QWEN_AGENT_MAX_LLM_CALL_PER_RUN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AGENT_TOOLS_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "DASHSCOPE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def work_dir() -> Iterator[Path]:
    """A fresh folder that a sandbox may have (pytest's own lies below a folder of the user)."""
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def process_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime whose kernels are plain processes."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    yield runtime
    runtime.close_all()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def docker_engine() -> DockerEngine:
    """The engine of this machine, with the image built."""
    engine = DockerEngine()
    image.ensure(engine)
    return engine


@pytest.fixture(scope="session")
def docker_runtime(docker_engine: DockerEngine) -> Iterator[Runtime]:
    """A runtime for all tests; at the end nothing of ours may be left."""
    runtime = Runtime(docker_engine, partial(image.ensure, docker_engine))
    yield runtime
    runtime.close_all()
    left = [sandbox.id for sandbox, _ in docker_engine.strays(Owner.current().labels)]
    assert left == [], "tests left sandboxes behind"


@pytest.fixture
def new_tool(docker_runtime: Runtime, work_dir: Path) -> Iterator[Callable[..., CodeInterpreter]]:
    """Makes tools on real sandboxes; they are closed after the test."""
    tools: list[CodeInterpreter] = []

    def make(**cfg: object) -> CodeInterpreter:
        tools.append(CodeInterpreter({"work_dir": str(work_dir), **cfg}, runtime=docker_runtime))
        return tools[-1]

    yield make
    for tool in tools:
        tool.close()


@pytest.fixture
def tool(new_tool: Callable[..., CodeInterpreter]) -> CodeInterpreter:
    """A tool on a real sandbox of its own."""
    return new_tool()


@pytest.fixture(scope="module")
def shared_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """One sandbox for the tests of a module that do not disturb each other."""
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with CodeInterpreter({"work_dir": str(path)}, runtime=docker_runtime) as tool:
        yield tool
    shutil.rmtree(path, ignore_errors=True)
