"""Every suite of the contract on two nodes over TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools.engines.ray.engine import NodesEngine
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from tests.nodes import engine_over, new_node


@pytest.fixture(scope="module")
def engine() -> Iterator[NodesEngine]:
    nodes = (new_node("a"), new_node("b"))
    yield engine_over(*nodes)
    for node in nodes:
        node.close()


@pytest.fixture(scope="module")
def transport() -> TransportName:
    return "stdio"


@pytest.fixture(scope="module")
def tag() -> str:
    return "none"


@pytest.fixture(scope="module")
def runtime(engine: NodesEngine) -> Iterator[Runtime]:
    runtime = Runtime(engine, lambda recipe: "none")
    yield runtime
    runtime.close_all()
