"""Other services mounted under paths of the gateway: they share only its keys and its containers."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.routing import Mount as Tree
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_tools.containers.mount import Mount


def mounted_route(mount: Mount) -> BaseRoute:
    """Return the route to a mount."""
    opened = _Opened(mount.path)
    return Tree(mount.path, opened) if mount.has_tree else Route(mount.path, opened, methods=["GET", "POST", "DELETE"])


class _Opened:
    """A mounted application with its path."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = scope["app"].state.mounted[self._path]
        await app(scope, receive, send)
