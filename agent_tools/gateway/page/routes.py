"""The routes of the page: itself, what it shows, and code that is tried on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from agent_tools import __version__
from agent_tools.gateway.containers import Wanted
from agent_tools.gateway.fields import Fields
from agent_tools.gateway.http import Json, json_body, owner_of, services_of
from agent_tools.gateway.page.trial import Trial
from agent_tools.gateway.responses.routes import runs_of
from agent_tools.gateway.sse import EventStream

_HERE = Path(__file__).parent
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'"
_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def index(_: Request) -> Response:
    """GET /."""
    return FileResponse(_HERE / "index.html", headers=_HEADERS)


async def script(_: Request) -> Response:
    """GET /page/page.js."""
    return FileResponse(_HERE / "page.js", headers=_HEADERS)


async def style(_: Request) -> Response:
    """GET /page/page.css."""
    return FileResponse(_HERE / "page.css", headers=_HEADERS)


def state(request: Request) -> Response:
    """GET /page/state: the asker's containers, and how busy it is."""
    services, runs = services_of(request), runs_of(request)
    running = services.containers.running()
    facts = {
        "version": __version__,
        "sandboxes": f"{len(running)} of {services.config.max_sandboxes}",
        "turns under way": runs.under_way,
        "waiting": runs.admission.waiting,
    }
    rows = [row for row in services.containers.all_of(owner_of(request)) if row["status"] == "active"]
    return Json({"facts": facts, "containers": [_shown(row, running.get(row["id"])) for row in reversed(rows)]})


async def try_code(request: Request) -> Response:
    """POST /page/run: `code`, and the `container` of an earlier run."""
    given = Fields(await json_body(request))
    code, id_ = given.text("code") or "", given.text("container")
    services, runs, owner = services_of(request), runs_of(request), owner_of(request)
    if id_ is None:
        id_ = (await run_in_threadpool(services.containers.create, owner, Wanted("page")))["id"]
    else:
        await run_in_threadpool(services.containers.active, owner, id_)
    await runs.enter(needs_sandbox=True)
    trial = Trial(services, id_, code)
    runs.follow(trial)
    return EventStream(trial.log, lambda: runs.abandon(trial), named=False, heartbeat=services.config.heartbeat)


def _shown(row: Any, held: bool | None) -> dict[str, Any]:
    sandbox = {None: "none", False: "idle", True: "busy"}[held]
    facts = {"id": row["id"], "name": row["name"], "memory": row["memory_limit"], "used": row["last_active_at"]}
    return {**facts, "sandbox": sandbox}


routes = [
    Route("/", index, methods=["GET"]),
    Route("/page/page.js", script, methods=["GET"]),
    Route("/page/page.css", style, methods=["GET"]),
    Route("/page/state", state, methods=["GET"]),
    Route("/page/run", try_code, methods=["POST"]),
]
