"""The application: routes, with and without the prefix of a policy, and how failures are answered.

A request's scope has `owner` and `for_users`, a WebSocket's `let_in`, as `agent_tools.gateway.app` says. Whatever is
answered may hold what a model wrote, so no browser may run it in the origin of who shows it.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.containers import failures
from agent_tools.containers.containers import Containers
from agent_tools.containers.records import Rows
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.wires.terminal import about, commands, files, python, searches, shells
from agent_tools.wires.terminal.commands import CommandRuns
from agent_tools.wires.terminal.python import Notebooks
from agent_tools.wires.terminal.requests import Json
from agent_tools.wires.terminal.rooms import Rooms
from agent_tools.wires.terminal.shells import Shells

PATH = "/terminal"
PUBLIC = ("/api/config", "/health")
"""Paths that are answered without a key."""
_SERVED = "/files/serve/"
_HEADERS = [
    (b"content-security-policy", b"sandbox allow-scripts allow-downloads allow-forms"),
    (b"x-content-type-options", b"nosniff"),
]
_ROUTES = (
    ("/api/config", about.config, "GET"),
    ("/openapi.json", about.openapi, "GET"),
    ("/system", about.system, "GET"),
    ("/ports", about.ports, "GET"),
    ("/proxy/{rest:path}", about.proxy, "GET POST PUT PATCH DELETE"),
    ("/skills", about.skills, "GET"),
    ("/skills/read", about.skill, "GET"),
    ("/files/cwd", files.get_cwd, "GET"),
    ("/files/cwd", files.set_cwd, "POST"),
    ("/files/list", files.list_files, "GET"),
    ("/files/read", files.read, "GET"),
    ("/files/display", files.display, "GET"),
    ("/files/view", files.view, "GET"),
    ("/files/serve/{path:path}", files.view, "GET"),
    ("/files/write", files.write, "POST"),
    ("/files/replace", files.replace, "POST"),
    ("/files/upload", files.upload, "POST"),
    ("/files/mkdir", files.mkdir, "POST"),
    ("/files/delete", files.delete, "DELETE"),
    ("/files/move", files.move, "POST"),
    ("/files/archive", files.archive, "POST"),
    ("/files/grep", searches.grep, "GET"),
    ("/files/glob", searches.glob, "GET"),
    ("/files/search", searches.search, "GET"),
    ("/files/matches", searches.matches, "GET"),
    ("/files/compare", searches.compare, "POST"),
    ("/execute", commands.execute, "POST"),
    ("/execute", commands.list_processes, "GET"),
    ("/execute/{id}/status", commands.process_status, "GET"),
    ("/execute/{id}/input", commands.process_input, "POST"),
    ("/execute/{id}", commands.kill_process, "DELETE"),
    ("/python", python.run_python, "POST"),
    ("/notebooks", python.open_notebook, "POST"),
    ("/notebooks/{id}", python.one_notebook, "GET DELETE"),
    ("/notebooks/{id}/execute", python.run_cell, "POST"),
    ("/api/terminals", shells.create_terminal, "POST"),
    ("/api/terminals", shells.list_terminals, "GET"),
    ("/api/terminals/user/output", shells.read_user_terminal, "GET"),
    ("/api/terminals/user/input", shells.send_user_terminal_input, "POST"),
    ("/api/terminals/{id}", shells.one_terminal, "GET DELETE"),
)
_ADMIN: list[BaseRoute] = [
    Route("/health", about.health),
    Route("/api/v1/policies", about.policies),
    Route("/api/v1/policies/{name}", about.policy, methods=["GET", "PUT"]),
    Route("/api/v1/policies/{name}/lifecycle", about.lifecycle, methods=["GET", "PUT"]),
    Route("/api/v1/terminals/refresh", about.refresh, methods=["POST"]),
]
_STATUSES: dict[type[AgentToolsError], int] = {
    failures.NoSandbox: 503,
    failures.TooManyContainers: 429,
    failures.FileTooLarge: 413,
    failures.StorageFull: 507,
    failures.DiskFull: 507,
    failures.ContainerExpired: 404,
    InvalidParams: 400,
}


@asynccontextmanager
async def mounted(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    """Have the application inside a gateway, on its containers."""
    routes: list[BaseRoute] = [Route(path, call, methods=methods.split()) for path, call, methods in _ROUTES]
    routes.append(WebSocketRoute("/api/terminals/{id}", shells.attach))
    handlers: Any = {HTTPException: _refused, AgentToolsError: _failed, OSError: _os_failed}
    app = Starlette(routes=[*_ADMIN, *routes, Mount("/p/{policy}", routes=routes)], exception_handlers=handlers)
    app.router.redirect_slashes = False
    rooms = Rooms(containers, rows)
    app.state.rooms, app.state.runs = rooms, CommandRuns(rooms)
    app.state.shells, app.state.notebooks = Shells(rooms), Notebooks(rooms)
    async with AsyncExitStack() as stack:
        for each in (app.state.runs, app.state.shells, app.state.notebooks):
            stack.push_async_callback(each.close)
        yield _Sandboxed(app)


class _Sandboxed:
    """Adds headers to every answer that keep a browser from running it as a page of its origin."""

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


async def _refused(_: Request, exc: HTTPException) -> Response:
    return Json({"detail": exc.detail}, exc.status_code)


async def _failed(_: Request, exc: AgentToolsError) -> Response:
    status = next((status for kind, status in _STATUSES.items() if isinstance(exc, kind)), 503)
    return Json({"detail": getattr(exc, "message", "") or str(exc)}, status)


async def _os_failed(_: Request, exc: OSError) -> Response:
    """Answer what the sandbox's own file system refused."""
    match exc:
        case FileNotFoundError() | NotADirectoryError():
            return Json({"detail": "File not found"}, 404)
        case PermissionError():
            return Json({"detail": exc.strerror or "Permission denied"}, 403)
        case _:
            return Json({"detail": exc.strerror or str(exc)}, 413 if exc.errno == errno.EFBIG else 400)
