"""The Connect protocol with JSON (https://connectrpc.com/docs/protocol), as far as E2B's SDKs speak it.

A unary call is plain JSON. A stream is of envelopes (bodies/envelopes.py) of JSON; the last one has flag 2 and, of a
stream that failed, an `error`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tools.bodies.envelopes import END, envelope, messages
from agent_tools.bodies.json_body import json_of, read_json, written
from agent_tools.errors import AgentToolsError
from agent_tools.wires.routing import Json, failure_of

MAX_MILLISECONDS = 86_400_000
MEDIA = "application/connect+json"
T = TypeVar("T")
_CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "already_exists",
    413: "resource_exhausted",
    422: "invalid_argument",
    429: "resource_exhausted",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "resource_exhausted",
}


def is_stream(request: Request) -> bool:
    """Return True if a request is of streams, not of a unary call."""
    return request.headers.get("content-type", "").startswith(MEDIA)


def failure(request: Request, detail: object, status: int) -> Response:
    """Return the answer of a call that failed."""
    if is_stream(request):
        return Response(envelope({"error": _error(detail, status)}, END), media_type=MEDIA)
    return Json(_error(detail, status), status)


def _error(detail: object, status: int) -> dict[str, Any]:
    message = detail if isinstance(detail, str) else json.dumps(detail)
    return {"code": _CODES.get(status, "internal"), "message": message}


async def message_of(request: Request, most: int, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the one message of a request. Errors as for `json_of` and `Envelopes.feed`."""
    if not is_stream(request):
        return await json_of(request, most, read)
    async for message in messages(request):
        return await read_json(message, read)
    raise HTTPException(400, "The request has no message.")


def seconds_of(request: Request) -> float | None:
    """Return the time limit that a request names, None for none.

    Raises:
        HTTPException: 400, it is no number of milliseconds, or too large.
    """
    given = request.headers.get("connect-timeout-ms")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 0 < int(given) <= MAX_MILLISECONDS):
        raise HTTPException(400, f"Connect-Timeout-Ms must be above 0 and at most {MAX_MILLISECONDS:,}.")
    return int(given) / 1_000


def streamed(answers: AsyncGenerator[dict[str, Any], None]) -> StreamingResponse:
    """Return a streamed answer; a failure ends the stream."""

    async def sent() -> AsyncGenerator[bytes, None]:
        end: dict[str, Any] = {}
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield await written(answer, envelope)
        except (HTTPException, AgentToolsError, OSError) as exc:
            end = {"error": _error(*failure_of(exc))}
        yield envelope(end, END)

    return StreamingResponse(sent(), media_type=MEDIA)
