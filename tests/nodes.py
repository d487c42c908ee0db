"""Nodes in this process, without Ray: the real server and the real connections, over any engine."""

from __future__ import annotations

from collections.abc import Sequence

from agent_tools.engines.engine import Engine
from agent_tools.engines.ray.engine import NodesEngine
from agent_tools.engines.ray.node import NodeEndpoint, NodeServer
from tests.doubles import ProcessEngine

LOCAL = "127.0.0.1"


class FixedNodes:
    """Implements Nodes: these endpoints."""

    def __init__(self, *endpoints: NodeEndpoint) -> None:
        self.known = list(endpoints)
        self.doubted: list[NodeEndpoint] = []

    def endpoints(self) -> Sequence[NodeEndpoint]:
        return self.known

    def doubt(self, endpoint: NodeEndpoint) -> None:
        self.doubted.append(endpoint)


def new_node(name: str, slots: int = 64, engine: Engine | None = None) -> NodeServer:
    engine = engine or ProcessEngine(shares_files=False)
    return NodeServer(engine, lambda recipe: "none", name, LOCAL, slots)


def engine_over(*nodes: NodeServer, patience: float = 0.0) -> NodesEngine:
    return NodesEngine(FixedNodes(*(node.endpoint for node in nodes)), patience)
