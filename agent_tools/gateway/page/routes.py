"""The routes of the page: its files, the state it shows, and the code that it runs."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from agent_tools.bodies.json_body import in_thread
from agent_tools.browser.figures import FRAME, SCRIPTS, STYLE, figure_libraries, library_file, shared_file
from agent_tools.containers.failures import ContainerExpired, ContainerNotFound
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.http import JsonResponse, jobs_of, json_object, owner_of, services_of
from agent_tools.gateway.page.code_job import TrialJob
from agent_tools.gateway.page.newest_responses import MAX_READ_BYTES, newest_responses
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import EventStreamResponse, while_there
from agent_tools.gateway.store.records import ResponseBody, ResponseEnd, StoredConversation
from agent_tools.gateway.store.store import Store
from agent_tools.models.base import JsonObject
from agent_tools.version import __version__

_HERE = Path(__file__).parent / "assets"
_ASSETS = (
    *("icon.svg", "page.js", "gateway.js", "kept.js", "place.js", "sign_on.js"),
    *(f"style/{name}.css" for name in ("page", "content", "views")),
    *(f"text/{name}.js" for name in ("highlight", "math", "prose", "figure")),
    *(
        f"views/{name}.js"
        for name in ("items", "turn", "follow", "choices", "chat", "editor", "trial", "recent", "snippets", "operator")
    ),
    *(f"panels/{name}.js" for name in ("chats", "files", "attachments", "sandboxes")),
)
_FOLDER = "/page/"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?=/)")
_CHAT = "page_response"  # in the metadata of a conversation: the id of its last response on the page
MAX_CHATS = 200  # that are looked through
MAX_TURNS = 500  # of one conversation
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FRAME_POLICY = (  # it has no origin, so it reaches neither the page, nor the gateway, nor the network
    "sandbox allow-scripts; default-src 'none'; script-src 'sha256-{}' blob:; style-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


async def index(request: Request) -> Response:
    """GET /: the page. It asks for a key first if one is needed, so that its own requests are not refused.

    Users of an identity provider may sign in there; the page then asks it for a token.
    """
    text = await run_in_threadpool((_HERE / "index.html").read_text, encoding="utf-8")
    keys, client, headers = services_of(request).keys, services_of(request).config.oidc_client_id, _HEADERS
    if keys.are_needed:
        about = await keys.sign_on.sign_in(client) if keys.sign_on and client else {}
        origin = _ORIGIN.match(about.get("token", ""))
        if origin:
            policy = _POLICY.replace("connect-src 'self'", f"connect-src 'self' {origin[0]}")
            headers = {**_HEADERS, "Content-Security-Policy": policy}
        facts = f' data-sign-on="{html.escape(json.dumps(about))}"' if origin else ""
        text = text.replace("<body>", f'<body class="locked"{facts}>')
    return HTMLResponse(text, headers=headers)


async def asset(request: Request) -> Response:
    """GET /page/ and a name: a file of the page."""
    name = request.scope["path"].removeprefix(_FOLDER)
    return FileResponse(shared_file(name) if name in (STYLE, *SCRIPTS) else _HERE / name, headers=_HEADERS)


def frame(_: Request) -> Response:
    """GET /page/frame/figure.html: a document without an origin, in which a library draws a figure."""
    text = shared_file(FRAME).read_text(encoding="utf-8")
    script = text.partition("<script>")[2].partition("</script>")[0]
    policy = _FRAME_POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    return HTMLResponse(text, headers={**_HEADERS, "Content-Security-Policy": policy})


def library(request: Request) -> Response:
    """GET /page/library/{name}: a file of a library for figures, if the operator has installed it."""
    path = library_file(services_of(request).config.figures, request.path_params["name"])
    if path is None:
        raise ApiError(404, "This library is not installed.", code="not_found")
    return FileResponse(path, media_type="text/javascript", headers=_HEADERS)


async def state(request: Request) -> Response:
    """GET /page/state: the owner's containers, the load of the gateway, and the problem of its upstream."""
    facts = await run_in_threadpool(_state, request)
    return JsonResponse({**facts, "upstream_problem": await services_of(request).upstream.problem()})


def _state(request: Request) -> JsonObject:
    services, jobs = services_of(request), jobs_of(request)
    running = services.containers.running()
    now = services.containers.clock()
    rows = [row for row in services.containers.all_of(owner_of(request)) if row.status == "active"]
    return {
        "version": __version__,
        "sandboxes": len(running),
        "max_kept_sandboxes": services.containers.slots.room.kept,
        "under_way": jobs.active,
        "waiting": services.containers.queue.waiting,
        "timeout": services.config.timeout,
        "unknown_tools": services.config.unknown_tools,
        "mcp": "/mcp" in request.app.state.mounted,
        "operator": request.scope["operator"],
        "libraries": figure_libraries(services.config.figures),
        "containers": [_shown(row, running.get(row.id), now) for row in reversed(rows)],
    }


def chats(request: Request) -> Response:
    """GET /page/chats: the owner's conversations on this page, the one used last first."""
    rows = services_of(request).store.newest(StoredConversation, MAX_CHATS, owner=owner_of(request))
    found = [(row, json.loads(row.metadata)) for row in sorted(rows, key=lambda row: row.used_at, reverse=True)]
    shown = [{"id": row.id, "used_at": row.used_at, "notes": notes} for row, notes in found if _CHAT in notes]
    return JsonResponse({"chats": shown, "now": time.time()})


async def container_of_chat(request: Request) -> Response:
    """GET /page/chats/{id}/container: the container that a conversation made, also for files that no code has read."""
    services, most = services_of(request), services_of(request).config.max_conversation_bytes
    work = partial(_container_made, services.store, owner_of(request), request.path_params["id"], most)
    return JsonResponse({"container": await in_thread(most, work)})


def _container_made(store: Store, owner: str, chat: str, left: int) -> str | None:
    """Return the container of a conversation's last response; None if it was named, or comes from another one.

    Also None if the responses have more than `left` bytes.
    """
    row = store.get(StoredConversation, chat, owner=owner)
    id_ = last = str(json.loads(row.metadata).get(_CHAT) or "") if row else ""
    for _ in range(MAX_TURNS):
        found = store.get(ResponseBody, id_, owner=owner) if id_ else None
        left -= len(found.body) if found else 0
        body = json.loads(found.body) if found and left >= 0 else {}
        is_its = (body.get("metadata") or {}).get("page_chat") == chat
        if not is_its or any(isinstance(tool.get("container"), str) for tool in body["tools"]):
            return None
        if not (id_ := body["previous_response_id"]):
            end = store.get(ResponseEnd, last, owner=owner)
            return end.container_id if end else None
    return None


async def newest(request: Request) -> Response:
    """GET /page/responses: the owner's newest responses."""
    services, owner = services_of(request), owner_of(request)
    running = {job.id: str(job.body["status"]) for job in jobs_of(request).all_of(ResponseJob)}
    work = partial(_newest, services, owner, running)
    return JsonResponse(await in_thread(MAX_READ_BYTES, work))


def _newest(services: Services, owner: str, running: Mapping[str, str]) -> JsonObject:
    return {"responses": list(newest_responses(services.store, owner, running)), "now": time.time()}


class _Trial(RequestModel):
    code: str = ""
    container: str | None = None


class _Stop(RequestModel):
    container: Needed


async def try_code(request: Request) -> Response:
    """POST /page/run: `code`, and the `container` of an earlier run."""
    given = read(_Trial, await json_object(request))
    services, jobs = services_of(request), jobs_of(request)
    slot = await while_there(jobs.enter(owner_of(request), needs_sandbox=True), request.receive)
    try:
        row = await run_in_threadpool(_container, services, owner_of(request), given.container)
        job = TrialJob(services, row.id, given.code)
    except BaseException:
        jobs.leave(slot)
        raise
    jobs.follow(job, slot)
    return EventStreamResponse(job.log, lambda: jobs.abandon(job), named=False, heartbeat=services.config.heartbeat)


async def stop_code(request: Request) -> Response:
    """POST /page/stop: end the code that was tried in a `container`. Its stream continues and reports the end."""
    id_ = read(_Stop, await json_object(request)).container
    row = await run_in_threadpool(services_of(request).containers.find, owner_of(request), id_)
    trials = [trial for trial in jobs_of(request).all_of(TrialJob) if trial.container_id == row.id]
    for trial in trials:
        await run_in_threadpool(trial.cancel.set)
    return JsonResponse({"stopped": len(trials)})


def _container(services: Services, owner: str, id_: str | None) -> ContainerRecord:
    """Return the container of earlier runs; a new one if that is gone."""
    if id_:
        with suppress(ContainerNotFound, ContainerExpired):
            return services.containers.active(owner, id_)
    return services.containers.create(owner, ContainerSpec("page"))


def _shown(row: ContainerRecord, is_busy: bool | None, now: float) -> JsonObject:
    sandbox = {None: "none", False: "idle", True: "busy"}[is_busy]
    facts = {"id": row.id, "name": row.name, "memory": row.memory_limit, "sandbox": sandbox}
    return {**facts, "unused": max(0.0, now - row.last_active_at)}


routes = [
    Route("/", index, methods=["GET"]),
    *(Route(f"{_FOLDER}{name}", asset, methods=["GET"]) for name in (*_ASSETS, STYLE, *SCRIPTS)),
    Route(f"{_FOLDER}{FRAME}", frame, methods=["GET"]),
    Route(f"{_FOLDER}library/{{name}}", library, methods=["GET"]),
    Route("/page/chats", chats, methods=["GET"]),
    Route("/page/chats/{id}/container", container_of_chat, methods=["GET"]),
    Route("/page/state", state, methods=["GET"]),
    Route("/page/responses", newest, methods=["GET"]),
    Route("/page/run", try_code, methods=["POST"]),
    Route("/page/stop", stop_code, methods=["POST"]),
]
