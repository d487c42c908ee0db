"""Sandboxes of real containers, on both transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from tests.docker.crashing import LIMITS


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def used_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox that tests of a module have one after another."""
    with Sandbox({"transport": request.param, "limits": LIMITS}) as made:
        yield made


@pytest.fixture
def sandbox(used_sandbox: Sandbox) -> Sandbox:
    """A sandbox with a fresh kernel and an empty folder."""
    if used_sandbox.is_alive:
        used_sandbox.restart()
        used_sandbox.run_command("find . -mindepth 1 -delete")
    return used_sandbox
