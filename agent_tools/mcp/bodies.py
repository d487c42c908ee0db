"""The bodies of requests, read before anything parses them, and refused if that would cost too much."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.marks import has_more_parts
from agent_tools.mcp.config import Bounds


class BoundedBodies:
    """An application in front of another one, which gets bodies of bounded cost only; to others it says 413."""

    def __init__(self, app: ASGIApp, bounds: Bounds) -> None:
        self._app = app
        self._most = bounds.max_body_bytes
        self._parts = bounds.max_body_parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif (body := await self._body(receive)) is not None:
            await self._app(scope, _Again(body, receive), send)
        else:
            message = f"The request is too large: {self._most:,} bytes, {self._parts:,} commas and brackets at most."
            await PlainTextResponse(message, 413)(scope, receive, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body, None if it costs too much."""
        pieces, size, more = list[bytes](), 0, True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            size, more = size + len(pieces[-1]), message.get("more_body", False)
            if size > self._most:
                return None
        body = b"".join(pieces)
        return None if has_more_parts(body, self._parts) else body


class _Again:
    """Gives a body that was read once more, and then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
