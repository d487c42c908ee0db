"""The routes of the page: its files, the state it shows, and the code that is tried on it."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from agent_tools.containers.failures import ContainerExpired, ContainerNotFound
from agent_tools.containers.records import Container
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.http import Json, jobs_of, json_body, owner_of, services_of
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.jobs import Job
from agent_tools.gateway.jobs.sse import EventStream, Pace, while_there
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ResponseBody, ResponseListed
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject
from agent_tools.results.execution import (
    Cleared,
    Died,
    Display,
    Error,
    Execution,
    Output,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)
from agent_tools.version import __version__

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


# The newest responses of an owner, as the page lists them: their tokens and times, whichever client asked.


MAX_LISTED = 25
MAX_READ_BYTES = MIB  # of one response with its input and events; of a larger one only the short columns are read
_CALLS = ("code_interpreter_call", "shell_call")


def newest_responses(store: Store, owner: str) -> Iterator[JsonObject]:
    """Yield an owner's newest responses, newest first, in at most `MAX_READ_BYTES` of each."""
    listed = store.newest(ResponseListed, MAX_LISTED, owner=owner)
    read = [row.id for row in listed if row.bytes <= MAX_READ_BYTES]
    bodies = {row.id: json.loads(row.body) for row in store.get_all(ResponseBody, read, owner=owner)}
    for row in listed:
        yield _response_shown(row, bodies.get(row.id))


def _response_shown(row: ResponseListed, body: Mapping[str, Any] | None) -> JsonObject:
    facts: JsonObject = {"id": row.id, "created_at": row.created_at, "status": row.status, "is_read": body is not None}
    if body is None:
        return facts
    usage, end = body.get("usage") or {}, body.get("completed_at")
    return {
        **facts,
        "model": body.get("model"),
        "calls": sum(item.get("type") in _CALLS for item in body.get("output", ())),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "seconds": None if end is None else max(0, end - body["created_at"]),
    }


# One piece of code from the page as a job: run in a container, with its outputs as events while they come.


MAX_TITLE = 200  # characters


class TrialJob(Job):
    """Code that is tried on the page; made in the event loop."""

    def __init__(self, services: Services, container_id: str, code: str) -> None:
        super().__init__(EventLog(services.config.max_response_bytes))
        self.container_id = container_id
        self._tool = ContainerTool(Hold(services.containers, container_id))
        self._metrics = services.metrics
        self._code = code

    def events(self) -> Generator[JsonObject, None, None]:
        """Run the code and yield what it does."""
        yield {"kind": "started", "container": self.container_id}
        outputs = self._tool.stream({"code": self._code}, cancelled=self.cancel)
        with self.cancel.ending(lambda: self._tool.cancel(self.cancel)):
            while True:
                try:
                    output = next(outputs)
                except StopIteration as end:
                    self._metrics.ended(end.value)
                    if note := end.value.changed.note:
                        yield {"kind": "note", "text": f"files written: {note}"}
                    yield _done(end.value, "stopped" if self.cancel.is_set() else _ending(end.value))
                    return
                yield from shown(output)

    def failed(self, failure: ApiError) -> Iterator[JsonObject]:
        """Yield why the code was not run."""
        yield {"kind": "error", "text": f"The code was not run: {failure.message}"}
        yield _done(Execution(), "refused")

    def close(self) -> None:
        """Let go of the container."""
        self._tool.hold.close()


def shown(output: Output) -> Iterator[JsonObject]:
    """Yield an output as the page shows it."""
    match output:
        case Stream(name, text):
            yield {"kind": name, "text": text}
        case Result() | Display():
            pictures = pictures_of(output)
            for picture in pictures:
                yield {"kind": "image", "url": picture.data_url}
            if output.text and not pictures:
                yield {"kind": "result", "text": output.text}
        case Cleared(wait):
            yield {"kind": "cleared", "wait": wait}
        case Error(name, value):
            yield {"kind": "error", "title": f"{name}: {value}".rstrip(": ")[:MAX_TITLE], "text": output.text}
        case TimedOut():
            yield {"kind": "error", "title": "Time limit reached", "text": output.text}
        case Died():
            yield {"kind": "error", "title": "The kernel died", "text": output.text}
        case _:
            yield {"kind": "note", "text": output.text}


def _ending(execution: Execution) -> str:
    return "done" if execution.ok else "failed"


def _done(execution: Execution, ending: str) -> JsonObject:
    files = [{"name": each.name, "size": each.size} for each in execution.changes]
    return {"kind": "done", "ending": ending, "seconds": execution.duration, "files": files}
