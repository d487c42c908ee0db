"""E2B's protocol, for `E2B_API_URL` and `E2B_SANDBOX_URL` of `http://HOST:PORT/e2b`.

Three parts: the control plane, which makes sandboxes; the code interpreter; and files and processes. A sandbox is a
container of the key that made it. Both SDKs name the sandbox in a header, so one path serves all.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.rows import Rows
from agent_tools.wires.e2b import code, contexts, control, files, processes, watch
from agent_tools.wires.e2b.connect import failure
from agent_tools.wires.e2b.state import ROUTES, E2BRequest, E2BWire
from agent_tools.wires.routing import Json, application

__all__ = ["MOUNT", "ROUTES", "code", "contexts", "control", "files", "processes", "watch"]  # each adds its routes
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_RPC = re.compile(r"/(filesystem\.Filesystem|process\.Process)/")


@ROUTES.on("GET", "/health")
async def _health(call: E2BRequest) -> Any:
    await call.here()
    return {}


def _failed(request: Request, detail: object, status: int) -> Response:
    if _RPC.search(request.scope["path"]):
        return failure(request, detail, status)
    return Json({"code": status, "message": detail if isinstance(detail, str) else str(detail)}, status)


@asynccontextmanager
async def _opened(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    app = application([*ROUTES.made(), Route("/{path:path}", control.absent, methods=_METHODS)], _failed)
    app.state.wire = wire = E2BWire(containers, rows)
    try:
        yield app
    finally:  # another door may fail to close
        await wire.close()


MOUNT = Mount("/e2b", _opened, has_tree=True)
