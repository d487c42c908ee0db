"""An application in front of one that parses JSON in the event loop: it passes on only bodies of limited cost."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.bodies.json_body import BodyRefused, body_of, check_parts, sized

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
        body: bytearray | None

        async def again() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message, body = {"type": "http.request", "body": body, "more_body": False}, None
            return message

        try:
            body = await body_of(Request(scope, receive), self._most)
            await sized(len(body), check_parts, body, MAX_PARTS)
        except BodyRefused as exc:
            await PlainTextResponse(exc.detail, exc.status_code)(scope, receive, send)
        else:
            await self._app(scope, again, send)
