"""Reads request bodies within their limits, and writes JSON answers and pages of lists, for every route."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_tools.bodies import json_body
from agent_tools.bodies.json_body import body_of, sized
from agent_tools.gateway.conversations.stored import ListedItem
from agent_tools.gateway.jobs import Job, Jobs
from agent_tools.gateway.log import log_request
from agent_tools.gateway.requests.api_errors import invalid, unknown_place
from agent_tools.gateway.requests.container_fields import scrubbed
from agent_tools.gateway.requests.fields import RequestModel, out_of_bounds, read
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import CHUNK_BYTES, EventStreamResponse, ended, unless_gone
from agent_tools.models.base import JsonObject

MAX_IGNORED = 20  # names of fields in a header
MAX_DIGITS = 18  # of a whole number in a query
_INTEGER = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}")
_HALVES = (b"\\ud", b"\\uD", b"\xed", b"\0")
"""JSON that holds halves of characters has one of these; in other encodings than UTF-8 it has zeros."""
_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_T = TypeVar("_T")


class ListedById(Protocol):
    """An object that is listed in pages."""

    @property
    def id(self) -> str:
        """The id that `after` names."""
        ...


_Item = TypeVar("_Item", bound=ListedById)


class JsonTextResponse(Response):
    """An answer of stored JSON text, sent in parts, so that other requests proceed between them."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, which may refuse a WebSocket."""
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await send({"type": f"{kind}.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body) or 1, CHUNK_BYTES):
            end = start + CHUNK_BYTES
            more = end < len(self.body)
            await send({"type": f"{kind}.body", "body": bytes(self.body[start:end]), "more_body": more})


class JsonResponse(JsonTextResponse):
    """A JSON answer, in ASCII."""

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return json.dumps(content, separators=(",", ":")).encode()


def services_of(request: HTTPConnection) -> Services:
    """Return the gateway's services."""
    services: Services = request.app.state.services
    return services


def jobs_of(request: HTTPConnection) -> Jobs:
    """Return the gateway's active jobs."""
    jobs: Jobs = request.app.state.jobs
    return jobs


def owner_of(request: HTTPConnection) -> str:
    """Return the owner of a request, as the middleware has set it."""
    return str(request.scope["owner"])


def record_request(
    services: Services, scope: Scope, status: int, started: float, *, method: str = "WEBSOCKET", route: str = ""
) -> None:
    """Count and log a request that has ended and began at `started` (monotonic); `route` names its endpoint."""
    route = route or getattr(scope.get("endpoint"), "__name__", "none")
    seconds, key = time.monotonic() - started, scope.get("key_name") or ""
    services.metrics.request(method, route, status, seconds)
    if key:
        services.metrics.request_of(key, status)
    client = scope["client"][0] if scope.get("client") else "-"
    log_request(method, scope.get("logged_path", scope["path"]), client, status, seconds, key)


def key_still_valid(request: Request) -> Callable[[], bool]:
    """Return a function that says whether the owner's key is still valid: it may be revoked at any time."""
    keys, owner = services_of(request).keys, owner_of(request)
    return lambda: keys.has(owner)


async def answer_by(
    request: Request, job: Job, whole: Callable[[], JsonObject], *, stream: bool, **how: Any
) -> Response:
    """Return a job's events as they come, or the whole once it is over; `how` is for `EventStreamResponse`.

    Raises:
        ApiError: it failed before anything was sent.
    """
    abandon = partial(jobs_of(request).abandon, job)
    if not await (unless_gone(job.log.after(0), request.receive) if stream else ended(job.log, request)):
        abandon()
        return Response(status_code=499)
    if job.failure and (not stream or len(job.log.events) == 1):
        raise job.failure  # nothing was sent yet, so the status can still report the error
    if not stream:
        return await sized(job.log.size, JsonResponse, whole())
    return EventStreamResponse(job.log, abandon, heartbeat=services_of(request).config.heartbeat, **how)


def add_upstream_headers(request: Request, model: str, options: Iterable[str], ignored: Sequence[str] = ()) -> None:
    """Add headers to the answer for parts of the request that the model server does not get.

    `X-Agent-Tools-Ignored` has the fields that are not sent, including `options` that the server refuses;
    `X-Agent-Tools-Calls: prompted` says that the server has no tool calling, and calls are read from text.
    """
    upstream = services_of(request).upstream
    profile = upstream.learned(model, upstream.key(request.headers))
    names = [name for name in (*ignored, *sorted(profile.left_out.intersection(options))) if _FIELD.fullmatch(name)]
    if names:
        request.scope["extra_headers"]["x-agent-tools-ignored"] = ", ".join(names[:MAX_IGNORED])
    if profile.tools == "prompted":
        request.scope["extra_headers"]["x-agent-tools-calls"] = "prompted"


async def raw_body(request: Request) -> bytes:
    """Return the body's bytes."""
    return bytes(await body_of(request, services_of(request).config.max_body_bytes))


async def read_json(body: bytes, read: Callable[[JsonObject], _T]) -> _T:
    """Return what `read` makes of a body, which is a JSON object. Large ones are read in a thread.

    Raises:
        BodyRefused: 400, it is not JSON; 413, it has too many parts.
        ApiError: 400, it is not an object; and as for `read`.
    """
    return await sized(len(body), lambda: read(parsed(body)))


def parsed(body: bytes) -> JsonObject:
    """Parse a body. Errors as for `read_json`."""
    value = json_body.parsed(body)
    if not isinstance(value, dict):
        raise invalid("The body of a request must be a JSON object.")
    return scrubbed(value) if any(half in body for half in _HALVES) else value


async def json_object(request: Request) -> JsonObject:
    """Return the JSON object of a request."""
    return await read_json(await raw_body(request), dict)


def query_integer(request: Request, name: str, least: int, most: int = 2**53) -> int | None:
    """Return a whole number of the query; None if it is not given."""
    given = request.query_params.get(name)
    if given is None:
        return None
    if not _INTEGER.fullmatch(given):
        raise invalid(f"Invalid '{name}': expected an integer of at most {MAX_DIGITS} digits.", name, "invalid_type")
    value = int(given)
    if not least <= value <= most:
        raise out_of_bounds(name, value, least if value < least else most, is_below=value < least)
    return value


class _Query(RequestModel):
    after: str = ""
    order: Literal["asc", "desc"] = "desc"


class PageQuery(NamedTuple):
    """The page of a list that a query asks for: at most `limit` items after the id `after`."""

    limit: int
    after: str
    is_descending: bool


def asked_page(request: Request, usual: int = 20, most: int = 100) -> PageQuery:
    """Read `limit`, `order` and `after` of a query.

    Args:
        request: the request.
        usual: the limit where none is given.
        most: the highest limit.
    """
    query = read(_Query, dict(request.query_params))
    return PageQuery(query_integer(request, "limit", 1, most) or usual, query.after, query.order == "desc")


def page(
    request: Request,
    items: Sequence[_Item],
    shown: Callable[[_Item], Any],
    more: Mapping[str, Any] = MappingProxyType({}),
    **limits: int,
) -> JsonResponse:
    """Answer one page of a list whose items come oldest first; `limits` are those of `asked_page`, `more` is added."""
    cut, has_more = _cut(asked_page(request, **limits), items)
    return JsonResponse(
        {"object": "list", "data": [shown(item) for item in cut], **_ends(cut), "has_more": has_more, **more}
    )


def page_of_texts(request: Request, items: Sequence[ListedItem]) -> Response:
    """Answer one page of items with their stored JSON."""
    return list_of_texts(*_cut(asked_page(request), items))


def list_of_texts(items: Sequence[ListedItem], has_more: bool = False) -> Response:
    """Answer items with their stored JSON."""
    rest = json.dumps({**_ends(items), "has_more": has_more}, separators=(",", ":"))
    data = ",".join(item.text for item in items)
    return JsonTextResponse(f'{{"object":"list","data":[{data}],{rest[1:]}')


def _ends(items: Sequence[ListedById]) -> dict[str, str | None]:
    """Return the first and the last id of a page."""
    return {"first_id": items[0].id if items else None, "last_id": items[-1].id if items else None}


def _cut(page: PageQuery, items: Sequence[_Item]) -> tuple[list[_Item], bool]:
    """Return the items of a page, and whether there are more."""
    ordered = list(reversed(items)) if page.is_descending else list(items)
    if page.after:
        places = [index for index, item in enumerate(ordered) if item.id == page.after]
        if not places:
            raise unknown_place(page.after)
        ordered = ordered[places[0] + 1 :]
    return ordered[: page.limit], len(ordered) > page.limit
