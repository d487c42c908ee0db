from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_tools.runtime.egress.dialling import Surroundings
from tests.unit.runtime.egress.network import Hop, Network, Server, closing_all

Keep = Callable[[Any], Any]
OpenNetwork = Callable[..., Network]


@pytest.fixture
def keep() -> Iterator[Keep]:
    with closing_all() as keep:
        yield keep


@pytest.fixture
def server(keep: Keep) -> Server:
    return keep(Server())


@pytest.fixture
def open_network(keep: Keep) -> OpenNetwork:
    """Makes networks in which every name lies at 127.0.0.1, or behind a proxy on the way."""

    def make(allow: list[str], *, hop: Hop | None = None, address: str = "127.0.0.1", **option: Any) -> Network:
        option = {"allow": allow, "private": ["127.0.0.0/8"], **option}
        next_hop = f"http://127.0.0.1:{hop.port}" if hop else None
        around = Surroundings(lambda host, port: [address], lambda host, port: next_hop)
        return keep(Network(option, around))

    return make
