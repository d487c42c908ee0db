"""Connections to servers: no wait is without a bound, also that for a name's addresses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.remote_mcp.connections import McpConnections
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure, RemoteServer

SERVER = RemoteServer("box", "https://tools.example.com/mcp")


class Resolver:
    """Answers once it is let; `asked` is set when somebody waits for it."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def look_up(self, _: str, __: int) -> list[str]:
        self.asked.set()
        self.answer.wait(60)
        return ["10.0.0.1"]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    found = Resolver()
    yield found
    found.answer.set()


def connections(resolver: Resolver, timeout: float) -> McpConnections:
    reach = AllowedServers(["tools.example.com"], look_up=resolver.look_up)
    return McpConnections(GatewayConfig(upstream="http://127.0.0.1:9/v1", mcp_timeout=timeout), reach)


def test_a_resolver_that_does_not_answer_has_a_time_limit(resolver: Resolver) -> None:
    with closing(connections(resolver, 0.2)) as found, pytest.raises(RemoteFailure, match=r"within 0\.2 seconds"):
        found.tools(SERVER)
    assert not resolver.answer.is_set()


def test_a_turn_that_ends_waits_for_no_resolver(resolver: Resolver) -> None:
    with closing(connections(resolver, 60.0)) as found:
        ending = threading.Thread(target=lambda: resolver.asked.wait(60) and found.cancel())
        ending.start()
        with pytest.raises(RemoteFailure, match="turn was ended"):
            found.tools(SERVER)
        ending.join()


def test_what_the_addresses_are_refused_for_is_told(resolver: Resolver) -> None:
    resolver.answer.set()
    with closing(connections(resolver, 60.0)) as found, pytest.raises(RemoteFailure, match="mcp_private"):
        found.tools(SERVER)
