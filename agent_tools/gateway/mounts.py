"""Other doors under paths of the gateway: they share its keys and its containers, and it knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_tools.containers.containers import Containers
from agent_tools.containers.rows import Rows
from agent_tools.gateway.config import GatewayConfig

Open = Callable[[Containers[GatewayConfig], Rows], AbstractAsyncContextManager[ASGIApp]]
"""Opens an application for as long as the gateway runs; each request's scope names its `owner`."""


@dataclass(frozen=True)
class Mount:
    """A door and its path, of which nothing lies below."""

    path: str
    open: Open

    def route(self) -> Route:
        """Return the route to it."""
        return Route(self.path, _Opened(self.path), methods=["GET", "POST", "DELETE"])


class _Opened:
    """The application that is open at a path."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = Request(scope).app.state.mounted[self._path]
        await app(scope, receive, send)
