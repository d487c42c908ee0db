"""The tool and the sandbox of real containers that the tests of a module have one after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.crashing import LIMITS
from tests.docker.lasting import begin_anew, lasting_tool


@pytest.fixture(scope="module")
def used_sandbox() -> Iterator[Sandbox]:
    """A sandbox that tests of a module have one after another; it is full after few processes, as of a bomb.

    What a transport changes is a part of the contract, which is tried on both.
    """
    with Sandbox({"limits": LIMITS, "pids": 64}) as made:
        yield made


@pytest.fixture
def sandbox(used_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a fresh kernel and an empty folder."""
    begin_anew(used_sandbox)
    return used_sandbox


@pytest.fixture(scope="module")
def used_tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """A tool that tests of a module have one after another: whatever the code does, the next call works."""
    with lasting_tool(docker_runtime) as tool:
        yield tool


@pytest.fixture
def fresh_tool(used_tool: CodeInterpreter) -> CodeInterpreter:
    """A tool with a fresh kernel and an empty folder."""
    begin_anew(used_tool.as_sandbox)
    return used_tool
