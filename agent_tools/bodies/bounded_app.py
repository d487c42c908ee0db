"""An application in front of one that parses JSON in the event loop: it passes on only bodies of limited cost."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.bodies.json_body import BodyRefused, LargeJson, body_of, check_parts
from agent_tools.limits import KIB

PIECE = 256 * KIB
MAX_PARTS = 50_000  # commas and opening brackets outside texts of a message


class BoundedBodies:
    """An application in front of another one, which gets only bodies of at most `max_bytes`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._most = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            again = _Again(await self._body(Request(scope, receive)), receive)  # nothing else holds it meanwhile
        except BodyRefused as exc:
            await PlainTextResponse(exc.detail, exc.status_code)(scope, receive, send)
        else:
            await self._app(scope, again, send)

    async def _body(self, request: Request) -> bytes:
        body = bytes(await body_of(request, self._most))
        await LargeJson.here().read(len(body), check_parts, body, MAX_PARTS)
        return body


class _Again:
    """Repeats a body that was read already, in pieces, so that its copies do not add up; then passes on messages."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._place = 0
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        piece = self._body[self._place : self._place + PIECE]
        self._place += PIECE
        is_last = self._place >= len(self._body)
        self._body = None if is_last else self._body
        return {"type": "http.request", "body": piece, "more_body": not is_last}
