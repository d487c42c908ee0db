"""Sandboxes of real containers, on both transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from tests.docker.crashing import LIMITS


@pytest.fixture(params=["sockets", "stdio"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox({"transport": request.param, "limits": LIMITS}) as made:
        yield made
