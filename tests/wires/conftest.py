"""A gateway with the terminal wire, and users of two servers that name theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.wires import WIRES, mount_of
from tests.gateway.conftest import Gateway, NewGateway, new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]
CHART = """from IPython.display import display
display({"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "[A chart]"}, raw=True)"""
"""As plotly's `show` where no picture can be drawn."""
MOUNTS = [mount_of(name) for name in WIRES]


class Served:
    """A gateway with the wire, and its clients. Keys `first` and `second` are for users, `plain` is not."""

    def __init__(self, gateway: Gateway, stack: ExitStack) -> None:
        self.gateway = gateway
        self._stack = stack
        named = NamedKeys(gateway.services.store)
        self.keys = {
            name: named.add(name, KeyLimits(), for_users=name != "plain") for name in ("first", "second", "plain")
        }
        named.read_into(gateway.services.keys)
        self.url = f"{gateway.url}/terminal"
        self.socket_url = self.url.replace("http", "ws", 1)

    def headers(self, user: str = "ann", chat: str = "1", key: str = "first") -> dict[str, str]:
        named = {"X-User-Id": user, "X-Session-Id": chat, "X-Terminal-Context-Id": f"chat:{chat}" if chat else ""}
        return {"Authorization": f"Bearer {self.keys[key]}", **{name: value for name, value in named.items() if value}}

    def client(self, user: str = "ann", chat: str = "1", key: str = "first", prefix: str = "") -> httpx.Client:
        made = httpx.Client(base_url=self.url + prefix, headers=self.headers(user, chat, key), timeout=60)
        return self._stack.enter_context(made)

    @property
    def running(self) -> Any:
        return self.gateway.services.containers.running()

    @property
    def rows(self) -> list[Any]:
        services = self.gateway.services
        owners = [services.keys.caller({"authorization": f"Bearer {key}"}).owner for key in self.keys.values()]
        return [row for owner in owners for row in services.containers.all_of(owner)]


@pytest.fixture
def serve(new_gateway: NewGateway) -> Iterator[Any]:
    """Makes gateways with the wire."""
    with ExitStack() as stack:
        yield lambda *arguments, **settings: Served(
            new_gateway({}, *arguments, mounts=MOUNTS, named_keys=True, **settings), stack
        )


@pytest.fixture
def served(serve: Any) -> Served:
    found: Served = serve()
    return found
