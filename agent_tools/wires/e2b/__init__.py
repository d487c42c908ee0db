"""E2B's protocol, for `E2B_API_URL` and `E2B_SANDBOX_URL` of `http://HOST:PORT/e2b`.

Three parts: the control plane, which makes sandboxes; the code interpreter; and files and processes. A sandbox is a
container of the key that made it. Both SDKs name the sandbox in a header, so one path serves all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount as Tree
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import Mount
from agent_tools.containers.records import Rows
from agent_tools.wires.e2b import code, control, files, processes, watch
from agent_tools.wires.e2b.calls import E2BRequest, E2BWire
from agent_tools.wires.e2b.connect import failure
from agent_tools.wires.http import Json, Routes, application

__all__ = ["MOUNT", "ROUTES", "watch"]  # whose import adds its routes
ROUTES = (control.ROUTES, code.ROUTES, files.ROUTES, files.RPC, processes.ROUTES)
_HEALTH = Routes(E2BRequest)
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@_HEALTH.on("GET", "/health")
async def _health(call: E2BRequest) -> Any:
    await call.here()
    return Json({}, 200)


def _failed(detail: object, status: int) -> Json:
    return Json({"code": status, "message": detail if isinstance(detail, str) else str(detail)}, status)


@asynccontextmanager
async def _opened(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    absent = [Route(path, control.absent(why), methods=_METHODS) for path, why in control.ABSENT.items()]
    plain = [route for routes in (*ROUTES[:3], _HEALTH) for route in routes.made()]
    apps = {
        "/filesystem.Filesystem": application(files.RPC.made(), failure),
        "/process.Process": application(processes.ROUTES.made(), failure),
        "": application([*plain, *absent], _failed),
    }
    wire = E2BWire(containers, rows)
    for app in apps.values():
        app.state.wire = wire
    yield Starlette(routes=[Tree(path, app=app) for path, app in apps.items()])
    await wire.close()


MOUNT = Mount("/e2b", _opened, has_tree=True)
