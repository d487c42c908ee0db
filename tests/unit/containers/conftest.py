"""Rows of containers, in memory and in a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools.containers.rows import MemoryRows, Rows
from agent_tools.gateway.store.store import Store


@pytest.fixture(params=["memory", "sqlite"])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    if request.param == "memory":
        yield MemoryRows()
        return
    store = Store("sqlite://")
    yield store
    store.close()
