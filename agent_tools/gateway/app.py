"""The gateway as an ASGI application: the door, which knows who asks and answers every failure; the routes behind."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from functools import partial

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.errors import AgentToolsError
from agent_tools.gateway import container_routes
from agent_tools.gateway.chat import routes as chat_routes
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.failures import ApiError
from agent_tools.gateway.http import Json, services_of
from agent_tools.gateway.ids import new_id
from agent_tools.gateway.page import routes as page_routes
from agent_tools.gateway.responses import routes as response_routes
from agent_tools.gateway.responses.runs import Runs
from agent_tools.gateway.services import Services
from agent_tools.gateway.tracing import Tracer
from agent_tools.runtime.runtime import Runtime
from agent_tools.settings import MIB

_OWNED = ("/v1/", "/page/run", "/page/stop", "/page/state")  # what has an owner, and needs a key where there are any
_log = logging.getLogger(__name__)


def create_app(config: GatewayConfig, runtime: Runtime, tracer: Tracer | None = None) -> Starlette:
    """The application. Sandboxes, connections and the store are there between its lifespan's start and end."""
    routes = [
        *(*response_routes.routes, *container_routes.routes, *chat_routes.routes, *page_routes.routes),
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Door)],
        exception_handlers={HTTPException: _unknown},
        lifespan=partial(_lifespan, config, runtime, tracer),
    )


@contextlib.asynccontextmanager
async def _lifespan(
    config: GatewayConfig, runtime: Runtime, tracer: Tracer | None, app: Starlette
) -> AsyncIterator[None]:
    services = await run_in_threadpool(Services, config, runtime, tracer)
    app.state.services, app.state.runs = services, Runs(services)
    try:
        yield
    finally:
        await app.state.runs.close()
        await services.upstream.aclose()
        await run_in_threadpool(services.close)


async def health(_: Request) -> Response:
    """GET /health: the process answers."""
    return Json({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: the engine and the upstream answer."""
    services = services_of(request)
    checks = {
        "engine": await run_in_threadpool(_engine_answers, services.runtime),
        "upstream": await services.upstream.is_ready(),
    }
    return Json(
        {"status": "ok" if all(checks.values()) else "unavailable", **checks}, 200 if all(checks.values()) else 503
    )


async def metrics(request: Request) -> Response:
    """GET /metrics, for Prometheus."""
    return Response(services_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _engine_answers(runtime: Runtime) -> bool:
    try:
        runtime.engine.guest()
    except AgentToolsError:
        return False
    return True


class Door:
    """Finds out who asks, counts, bounds what is sent, and answers every failure in the API's own shape."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        answer = _Answer(send)
        started = time.monotonic()
        with services.metrics.in_flight.track_inprogress():
            try:
                headers = Headers(scope=scope)
                if scope["path"].startswith(_OWNED):
                    scope["owner"] = services.keys.owner(headers)
                limit = max(services.config.max_upload_bytes, services.config.max_body_bytes) + MIB
                await self._app(scope, _Bounded(receive, limit), answer)
            except Exception as exc:
                if answer.status:
                    raise
                await _failure(exc).__call__(scope, receive, answer)
        endpoint = scope.get("endpoint")
        route = getattr(endpoint, "__name__", "none")
        services.metrics.requests.labels(scope["method"], route, str(answer.status)).inc()
        services.metrics.request_seconds.labels(route).observe(time.monotonic() - started)


class _Answer:
    """Sends, notes the status, and gives every answer an id."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", new_id("req").encode())]
            message = {**message, "headers": headers}
        await self._send(message)


class _Bounded:
    """Receives, up to a number of bytes."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise ApiError(413, "The request is too large.", code="request_too_large")
        return message


async def _unknown(_: Request, exc: Exception) -> Response:
    """No such route, or no such method of it."""
    return _failure(exc)


def _failure(exc: Exception) -> Response:
    """What a client is told; nothing of an unknown failure but that there was one."""
    if isinstance(exc, HTTPException):
        exc = ApiError(exc.status_code, f"{exc.detail}.", code="unknown_url" if exc.status_code == 404 else None)
    if isinstance(exc, AgentToolsError):
        _log.error("a request failed: %s", type(exc).__name__)
        exc = ApiError(503, "The code interpreter is not available now.", code="code_interpreter_unavailable")
    if not isinstance(exc, ApiError):
        _log.error("a request failed: %s", type(exc).__name__)
        exc = ApiError(500, "The gateway failed.", code="internal_error")
    return Json(exc.body, exc.status, exc.headers)
