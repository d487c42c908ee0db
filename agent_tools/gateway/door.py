"""The door: it finds the owner of each request, bounds and counts it, and answers every failure."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.containers.ids import new_id
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.http import Json
from agent_tools.gateway.requests.failures import ApiError, Refusal, late, too_large
from agent_tools.gateway.services import Services
from agent_tools.settings import MIB

_OWNED = ("/v1/", "/page/run", "/page/stop", "/page/state")  # what has an owner, and needs a key where there are any
_GONE = 499  # the client left before there was an answer


class Door:
    """Middleware around all routes. Failures are answered in the API's own shape."""

    def __init__(self, app: ASGIApp, owned: Sequence[str] = ()) -> None:
        self._app = app
        self._owned = (*_OWNED, *owned)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        body = _Body(receive, services.config, Headers(scope=scope))
        answer = _Sender(send, body)
        started = time.monotonic()
        with services.metrics.in_flight.track_inprogress():
            try:
                _let_in(services, scope, self._owned)
                await self._app(scope, body, answer)
            except Exception as exc:
                if isinstance(exc, Refusal):
                    services.metrics.security(exc.event)
                if answer.status:
                    raise
                response = failed(exc)
                await response(scope, receive, answer)
        route = getattr(scope.get("endpoint"), "__name__", "none")
        services.metrics.request(scope["method"], route, answer.status, time.monotonic() - started)


def failed(exc: Exception) -> Response:
    """Return the answer for a failure."""
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=_GONE)
    if isinstance(exc, HTTPException):
        exc = ApiError(exc.status_code, f"{exc.detail}.", code="unknown_url" if exc.status_code == 404 else None)
    error = client_error(exc)
    return Json(error.body, error.status, error.headers)


def _let_in(services: Services, scope: Scope, owned: tuple[str, ...]) -> None:
    """Set the request's owner, or refuse it.

    Raises:
        Refusal: it has no owner, or can be read in more than one way.
    """
    headers = Headers(scope=scope)
    is_chunked = "transfer-encoding" in headers
    if is_chunked and ("content-length" in headers or scope["http_version"] == "1.0"):
        raise Refusal(
            "malformed", 400, "Tell a body's length in one way only: by Content-Length, or by chunks in HTTP/1.1."
        )
    if scope["path"].startswith(owned):
        scope["owner"] = services.keys.owner(headers)
    else:
        services.keys.refuse_strangers(headers, may_link=scope["method"] == "GET")


class _Body:
    """Receives a request's body within its limits of bytes and time. `is_read` is true once it has all come."""

    def __init__(self, receive: Receive, config: GatewayConfig, headers: Headers) -> None:
        self._receive = receive
        self._left = max(config.max_upload_bytes, config.max_body_bytes) + MIB
        self._patience = config.body_timeout
        self._rate = config.min_body_rate
        self.is_read = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"

    async def __call__(self) -> Message:
        if self.is_read:
            return await self._receive()  # which tells that the client hung up, whenever it does
        started = time.monotonic()
        with anyio.move_on_after(self._patience) as waiting:
            message = await self._receive()
        if waiting.cancelled_caught:
            raise late("body")
        size = len(message.get("body", b""))
        self._patience += size / self._rate - (time.monotonic() - started)
        self._left -= size
        if self._left < 0:
            raise too_large("The request is too large.")
        self.is_read = not message.get("more_body")
        return message


class _Sender:
    """Sends an answer with an id, notes its status, and closes the connection if the body was not read."""

    def __init__(self, send: Send, body: _Body) -> None:
        self._send = send
        self._body = body
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", new_id("req").encode())]
            if not self._body.is_read:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)
