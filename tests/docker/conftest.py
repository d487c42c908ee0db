"""Sandboxes of real containers that tests have one after another, since a start costs more than most tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.crashing import LIMITS


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def used_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox that tests of a module have one after another; it is full after few processes, as of a bomb."""
    with Sandbox({"transport": request.param, "limits": LIMITS, "pids": 64}) as made:
        yield made


@pytest.fixture
def sandbox(used_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a fresh kernel and an empty folder."""
    if used_sandbox.is_alive:
        used_sandbox.restart()
        used_sandbox.run_command("find . -mindepth 1 -delete")
    return used_sandbox


@pytest.fixture(scope="module")
def used_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """A tool that tests of a module have one after another: whatever the code does, the next call works."""
    with tempfile.TemporaryDirectory(prefix="agent-tools-test-") as path:
        with CodeInterpreter({"work_dir": path}, runtime=docker_runtime) as tool:
            tool.call("0")  # what it holds is the fixture's, and not the first test's
            yield tool
        docker_runtime.settle()


@pytest.fixture
def fresh_tool(used_tool: CodeInterpreter) -> CodeInterpreter:
    """A tool with a fresh kernel and an empty folder."""
    if used_tool.as_sandbox.is_alive:
        used_tool.restart()
        used_tool.as_sandbox.run_command("find . -mindepth 1 -delete")
    return used_tool
