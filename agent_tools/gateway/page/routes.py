"""The routes of the page: its files, the state it shows, and the code that is tried on it."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from agent_tools import __version__
from agent_tools.containers.failures import ContainerExpired, ContainerNotFound
from agent_tools.containers.records import Container
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.http import Json, jobs_of, json_body, owner_of, services_of
from agent_tools.gateway.jobs.sse import EventStream, Pace, while_there
from agent_tools.gateway.page.job import TrialJob
from agent_tools.gateway.page.responses import MAX_READ_BYTES, newest_responses
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.services import Services
from agent_tools.models.base import JsonObject

_HERE = Path(__file__).parent / "assets"
_ASSETS = (
    *("icon.svg", "page.js", "elements.js", "gateway.js", "kept.js", "place.js"),
    *(f"style/{name}.css" for name in ("page", "content", "views")),
    *(f"text/{name}.js" for name in ("highlight", "table", "prose", "figure", "output")),
    *(f"views/{name}.js" for name in ("items", "turn", "chat", "editor", "trial", "recent", "snippets")),
    *(f"panels/{name}.js" for name in ("files", "attachments", "sandboxes")),
)
_FOLDER = "/page/"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def index(request: Request) -> Response:
    """GET /: the page. It asks for a key first where one is needed, so that no request of its own is refused."""
    text = (_HERE / "index.html").read_text(encoding="utf-8")
    if services_of(request).keys.are_needed:
        text = text.replace("<body>", '<body class="locked">')
    return HTMLResponse(text, headers=_HEADERS)


async def asset(request: Request) -> Response:
    """GET /page/ and a name: a file of the page."""
    return FileResponse(_HERE / request.scope["path"].removeprefix(_FOLDER), headers=_HEADERS)


def state(request: Request) -> Response:
    """GET /page/state: the owner's containers, and the load of the gateway."""
    services, jobs = services_of(request), jobs_of(request)
    running = services.containers.running()
    now = services.containers.clock()
    rows = [row for row in services.containers.all_of(owner_of(request)) if row.status == "active"]
    return Json(
        {
            "version": __version__,
            "sandboxes": len(running),
            "max_kept_sandboxes": services.containers.places.room.kept,
            "under_way": jobs.active,
            "waiting": jobs.admission.waiting,
            "timeout": services.config.timeout,
            "unknown_tools": services.config.unknown_tools,
            "mcp": "/mcp" in request.app.state.mounted,
            "containers": [_shown(row, running.get(row.id), now) for row in reversed(rows)],
        }
    )


async def newest(request: Request) -> Response:
    """GET /page/responses: the owner's newest responses."""
    services, owner = services_of(request), owner_of(request)
    work = partial(_newest, services, owner)
    return Json(await services.large_json.in_thread(MAX_READ_BYTES, work))


def _newest(services: Services, owner: str) -> JsonObject:
    return {"responses": list(newest_responses(services.store, owner)), "now": time.time()}


async def try_code(request: Request) -> Response:
    """POST /page/run: `code`, and the `container` of an earlier run."""
    given = Fields(await json_body(request))
    code, id_ = given.text("code") or "", given.text("container")
    services, jobs = services_of(request), jobs_of(request)
    place = await while_there(jobs.enter(owner_of(request), needs_sandbox=True), request.receive)
    try:
        row = await run_in_threadpool(_container, services, owner_of(request), id_)
        job = TrialJob(services, row.id, code)
    except BaseException:
        jobs.leave(place)
        raise
    jobs.follow(job, place)
    return EventStream(job.log, lambda: jobs.abandon(job), named=False, pace=Pace(services.config.heartbeat))


async def stop_code(request: Request) -> Response:
    """POST /page/stop: end the code that was tried in a `container`. Its stream goes on and tells how it ended."""
    id_ = Fields(await json_body(request)).needed("container")
    row = await run_in_threadpool(services_of(request).containers.find, owner_of(request), id_)
    trials = [trial for trial in jobs_of(request).all_of(TrialJob) if trial.container_id == row.id]
    for trial in trials:
        await run_in_threadpool(trial.cancel.set)
    return Json({"stopped": len(trials)})


def _container(services: Services, owner: str, id_: str | None) -> Container:
    """Return the container of earlier runs; a new one if that is gone."""
    if id_:
        with suppress(ContainerNotFound, ContainerExpired):
            return services.containers.active(owner, id_)
    return services.containers.create(owner, ContainerSpec("page"))


def _shown(row: Container, held: bool | None, now: float) -> JsonObject:
    sandbox = {None: "none", False: "idle", True: "busy"}[held]
    facts = {"id": row.id, "name": row.name, "memory": row.memory_limit, "sandbox": sandbox}
    return {**facts, "unused": max(0.0, now - row.last_active_at)}


routes = [
    Route("/", index, methods=["GET"]),
    *(Route(f"{_FOLDER}{name}", asset, methods=["GET"]) for name in _ASSETS),
    Route("/page/state", state, methods=["GET"]),
    Route("/page/responses", newest, methods=["GET"]),
    Route("/page/run", try_code, methods=["POST"]),
    Route("/page/stop", stop_code, methods=["POST"]),
]
