"""The protocol by which Open WebUI uses a terminal server: sealed containers, one for each user and chat.

Each answer may contain text that a model wrote, so no browser may run it in the origin of the page that shows it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.routing import Mount as Tree
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.rows import Rows
from agent_tools.wires.routing import Json, application, health
from agent_tools.wires.terminal import about, commands, files, notebooks, openapi, python, searches, shells
from agent_tools.wires.terminal.policies import POLICIES
from agent_tools.wires.terminal.state import ROUTES, TerminalWire

__all__ = [
    "MOUNT",
    "POLICIES",
    "ROUTES",
    "commands",
    "files",
    "notebooks",
    "openapi",
    "python",
    "searches",
]  # whose import adds their routes
_SERVED = "/files/serve/"
_HEADERS = {
    "content-security-policy": "sandbox allow-scripts allow-downloads allow-forms",
    "x-content-type-options": "nosniff",
}
_SHELLS = re.compile("/api/terminals(/[^/]+)?$")


def _failed(request: Request, detail: Any, status: int) -> Json:
    """Answer a failure; the panel shows the `error` of a failure of shells."""
    return Json({"error" if _SHELLS.search(request.scope["path"]) else "detail": detail}, status)


@asynccontextmanager
async def _opened(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    routes = [*ROUTES.made(), WebSocketRoute("/api/terminals/{id}", shells.attach)]
    open_ = [Route("/api/config", about.features), Route("/health", health)]
    policies = POLICIES.made()
    app = application([*open_, *policies, *routes, Tree("/p/{policy}", routes=[open_[0], *routes])], _failed)
    app.state.wire = wire = TerminalWire(containers, rows)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["extra_headers"].update(_HEADERS)
            before, served, _ = scope["path"].partition(_SERVED)
            scope["logged_path"] = before + served  # without the name of the file
        await app(scope, receive, send)

    async with AsyncExitStack() as stack:
        for resources in (wire.commands, wire.shells, wire.archives, wire.notebooks):
            stack.push_async_callback(resources.close)
        yield serve


MOUNT = Mount("/terminal", _opened, has_tree=True, public=("/api/config", "/health"), wants_users=True)
