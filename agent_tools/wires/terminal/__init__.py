"""The protocol by which Open WebUI uses a terminal server: sealed containers, one for each user and chat.

Each answer may contain text that a model wrote, so no browser may run it in the origin of the page that shows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.routing import Mount as Tree
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import Mount
from agent_tools.containers.records import Rows
from agent_tools.wires.http import application
from agent_tools.wires.terminal import about, commands, files, python, searches
from agent_tools.wires.terminal.callers import ROUTES, TerminalWire

POLICIES = about.POLICIES
__all__ = ["MOUNT", "POLICIES", "ROUTES", "commands", "files", "python", "searches"]  # whose import adds their routes
_SERVED = "/files/serve/"
_HEADERS = [
    (b"content-security-policy", b"sandbox allow-scripts allow-downloads allow-forms"),
    (b"x-content-type-options", b"nosniff"),
]


@asynccontextmanager
async def _opened(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    routes = [*ROUTES.made(), WebSocketRoute("/api/terminals/{id}", commands.attach)]
    open_ = [Route("/api/config", about.features), Route("/health", about.health)]
    app = application([*open_, *about.POLICIES.made(), *routes, Tree("/p/{policy}", routes=[open_[0], *routes])])
    app.state.wire = wire = TerminalWire(containers, rows)
    async with AsyncExitStack() as stack:
        for shelf in (wire.commands, wire.shells, wire.notebooks):
            stack.push_async_callback(shelf.close)
        yield _Sandboxed(app)


class _Sandboxed:
    """An application whose answers all have headers that keep a browser from running them as a page of its origin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        before, served, _ = scope["path"].partition(_SERVED)
        if served:
            scope["logged_path"] = before + served  # without the name of the file
        await self._app(scope, receive, sent)


MOUNT = Mount("/terminal", _opened, has_tree=True, public=("/api/config", "/health"), wants_users=True)
