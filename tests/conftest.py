"""Fixtures every test may use. A test that needs Docker fails without it; nothing is skipped."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import EngineError
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests import iri_grammars
from tests.doubles import ProcessEngine
from tests.leaks import ALL_KINDS, Scratch, nothing_left
from tests.nursery import nursery

iri_grammars.put_off()  # before anything imports jsonschema
collect_ignore = ["integrations"]  # which scripts/try integrations runs, with an environment of its own
SHARED_BY_ALL = {
    "docker_engine",
    "docker_runtime",
    "scratch",
    "tmp_path_factory",
    "pytestconfig",
    "no_leak_of_the_module",
    "certificates_are_read_once",
    "databases_are_ready",
}


def pytest_configure() -> None:
    """Take SIGINT, which a run in the background of a script ignores, as all processes that it starts would."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say who runs the tests, since root alone runs them all."""
    rest = "" if os.getuid() == 0 else ", without the tests that need root (pytest -m needs_root as root)"
    return f"user: {os.getuid()}{rest}"


def pytest_collection() -> None:
    """Import and collect without looking for garbage, of which there is none."""
    import hypothesis  # looks for garbage when it is imported: here there is little to look at

    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=slow)  # time decides no test
    hypothesis.settings.load_profile("untimed")
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the image, which no test's time limit may hold; leave what was collected out of later looks for garbage."""
    if not session.config.option.collectonly and any("docker_engine" in _fixtures_of(item) for item in session.items):
        with suppress(EngineError):  # each test that needs it says so
            image.ensure(DockerEngine())
    gc.enable()
    gc.freeze()


def _fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only root can do, for other users; put the longest files first where workers share the tests."""
    if os.getuid() != 0:
        left_out = [item for item in items if item.get_closest_marker("needs_root")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        from tests.scheduling import turn_of

        items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand the tests to the workers file by file."""
    from tests.scheduling import ByFileAndPair  # pytest-xdist is only there where tests run on several workers

    return ByFileAndPair(config, log)


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    """The private folder for all that the package and the tests put on disk; pytest's own stays where it is."""
    tmp_path_factory.getbasetemp()
    resource_tracker.ensure_running()  # multiprocessing's child, which lives as long as this process
    nursery()  # as does this child
    scratch = Scratch()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scratch.environment.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)  # the cached answer of gettempdir()
        yield scratch
    shutil.rmtree(scratch.path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Every client of HTTP reads those of all authorities, longer than most tests take: they share what was read."""
    with pytest.MonkeyPatch.context() as patch:
        for library in ("httpx", "httpx2"):
            if transport := sys.modules.get(f"{library}._transports.default"):
                patch.setattr(transport, "create_ssl_context", _read_once(transport.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def databases_are_ready() -> Iterator[None]:
    """New files of gateways begin with all revisions of their schema; `tests/gateway/store/test_schema.py` has none."""
    with pytest.MonkeyPatch.context() as patch:
        if "agent_tools.gateway.store.store" in sys.modules:
            from agent_tools.gateway.store import schema
            from tests.ready_database import with_copies

            patch.setattr(schema, "prepare", with_copies(schema.prepare))
        yield


def _read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def create_ssl_context(**options: Any) -> Any:
        key = (*sorted(options.items()), os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in known:
            known[key] = read(**options)
        return known[key]

    return create_ssl_context


@pytest.fixture(scope="module", autouse=True)
def no_leak_of_the_module(request: pytest.FixtureRequest, scratch: Scratch) -> Iterator[None]:
    """What the fixtures of a module hold over its tests is gone with them."""
    gc.collect()
    gc.freeze()  # what earlier modules imported, too: a later look for garbage costs half a second with it
    is_docker = request.path in _files_with_docker(request.session)
    with nothing_left(scratch, request.node.name, with_containers=is_docker, kinds=ALL_KINDS):
        yield


@cache
def _files_with_docker(session: pytest.Session) -> frozenset[Path]:
    return frozenset(item.path for item in session.items if item.get_closest_marker("docker"))


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest, scratch: Scratch, no_leak_of_the_module: None) -> Iterator[None]:
    """No test leaves anything behind. Where a wider fixture may hold a sandbox, only what a sandbox never is counts."""
    is_docker = request.node.get_closest_marker("docker") is not None
    kinds = ("child process",) if _has_wider_fixtures(request) else ALL_KINDS
    with nothing_left(scratch, request.node.name, with_containers=is_docker, kinds=kinds):
        yield


def _has_wider_fixtures(request: pytest.FixtureRequest) -> bool:
    found = request.node._fixtureinfo.name2fixturedefs
    return any(name not in SHARED_BY_ALL and defs[-1].scope != "function" for name, defs in found.items())


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test."""
    for name in ("M6_CODE_INTERPRETER_WORK_DIR", "M6_CODE_INTERPRETER_STATIC_URL", "DEFAULT_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("QWEN_AGENT_DEFAULT_WORKSPACE", "QWEN_AGENT_MAX_LLM_CALL_PER_RUN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "AGENT_TOOLS_IMAGE_REPOSITORY"):
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
    docker_runtime.settle()


@pytest.fixture
def tool(new_tool: Callable[..., CodeInterpreter]) -> CodeInterpreter:
    """A tool on a real sandbox of its own."""
    return new_tool()


@pytest.fixture(scope="module")
def shared_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """One sandbox for the tests of a module that do not disturb each other."""
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with CodeInterpreter({"work_dir": str(path)}, runtime=docker_runtime) as tool:
        tool.call("0")  # what it holds is the fixture's, and not the first test's
        yield tool
    shutil.rmtree(path, ignore_errors=True)
