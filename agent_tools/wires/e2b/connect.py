"""The Connect protocol with JSON (https://connectrpc.com/docs/protocol), as far as E2B's SDKs speak it.

A unary call is plain JSON. A stream is of envelopes: a byte of flags, four bytes of length, and JSON; the last one has
flag 2 and, of a stream that failed, an `error`.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tools.bodies.json_body import json_of, read_json
from agent_tools.errors import AgentToolsError
from agent_tools.limits import MIB
from agent_tools.wires.http import Json, failure_of

MAX_MESSAGE = 4 * MIB
MAX_MESSAGES = 100_000  # of one stream
MAX_MILLISECONDS = 86_400_000
MEDIA = "application/connect+json"
END = 2
_HEAD = struct.Struct(">BI")
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


def envelope(message: dict[str, Any], flags: int = 0) -> bytes:
    """Return a message of a stream."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(flags, len(data)) + data


class Envelopes:
    """The messages of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._count = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take bytes; return the messages that are whole now, each as JSON.

        Raises:
            HTTPException: 400, a message is compressed; 413, it is too large, or one too many.
        """
        self._data += piece
        found, place = list[bytes](), 0
        while len(self._data) - place >= _HEAD.size:
            flags, size = _HEAD.unpack_from(self._data, place)
            if size > MAX_MESSAGE:
                raise HTTPException(413, f"A message is larger than {MAX_MESSAGE:,} bytes.")
            if flags & ~END:
                raise HTTPException(400, "Messages of a stream must not be compressed.")
            end = place + _HEAD.size + size
            if len(self._data) < end:
                break
            self._count += 1
            if self._count > MAX_MESSAGES:
                raise HTTPException(413, f"The stream has more than {MAX_MESSAGES:,} messages: begin another one.")
            found.append(bytes(self._data[place + _HEAD.size : end]))
            place = end
        del self._data[:place]
        return found


async def messages(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream; others are served between two. Errors as for `Envelopes.feed`."""
    envelopes = Envelopes()
    async for piece in request.stream():
        for message in envelopes.feed(piece):
            yield message
            await asyncio.sleep(0)


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
                    yield envelope(answer)
        except (HTTPException, AgentToolsError, OSError) as exc:
            end = {"error": _error(*failure_of(exc))}
        yield envelope(end, END)

    return StreamingResponse(sent(), media_type=MEDIA)
