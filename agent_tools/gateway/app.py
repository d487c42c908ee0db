"""The gateway as an ASGI application: its routes behind the middleware, and its services while it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.bodies.sign_on import WELL_KNOWN
from agent_tools.containers.mount import Mount
from agent_tools.gateway import chat, container_routes, conversation_routes, skill_routes
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.http import JsonResponse, services_of
from agent_tools.gateway.jobs import Jobs
from agent_tools.gateway.middleware import GatewayMiddleware, failed
from agent_tools.gateway.mounted_services import mounted_route
from agent_tools.gateway.page import operator
from agent_tools.gateway.page import routes as page_routes
from agent_tools.gateway.passed_on import proxied_routes
from agent_tools.gateway.readiness import Readiness
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses import routes as response_routes
from agent_tools.gateway.responses.websocket import ResponseSockets
from agent_tools.gateway.services import Services
from agent_tools.runtime.engine_lookup import preparing

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

_NO_USERS = (
    "%s is served, but no key may name users, so all users of a key share one container: "
    "`agent-tools keys add NAME --for-users`, and serve with --set named_keys=true"
)
_log = logging.getLogger(__name__)


def create_app(
    config: GatewayConfig,
    runtime: Runtime,
    tracing: Any = None,
    mounts: Sequence[Mount] = (),
    *,
    owns_runtime: bool = False,
) -> Starlette:
    """Build the application. Sandboxes, connections and the store exist while its lifespan does.

    `tracing` is a TracerProvider, by default the environment's.
    With `owns_runtime`, the application's end also stops the runtime, without waiting for a slow engine; then nothing
    else may use the runtime, nor this process afterwards.
    """
    routes = [
        *(*response_routes.routes, *container_routes.routes, *conversation_routes.routes, *chat.routes),
        *skill_routes.routes,
        *(*page_routes.routes, *operator.routes, *proxied_routes(config.endpoints), *_PROBES),
        *([] if config.metrics_port is not None else [_METRICS]),
        Route(WELL_KNOWN + "{door:path}", resource_metadata, methods=["GET"]),
        *map(mounted_route, mounts),
    ]
    end_waits = runtime.stop if owns_runtime else lambda: None
    public = [mount.path + path for mount in mounts for path in mount.public]
    trees = [f"{mount.path}/" for mount in mounts if mount.has_tree]
    secret = [mount.path for mount in mounts if mount.has_secret_path]
    owned = [mount.path for mount in mounts]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(GatewayMiddleware, owned=owned, public=public, trees=trees, secret=secret)],
        exception_handlers={HTTPException: _unknown},
        lifespan=partial(_lifespan, partial(Services, config, runtime, tracing), mounts, end_waits),
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host
    return app


def create_second_app(app: Starlette) -> Starlette:
    """Build the application of the second port, on the services of the first one's."""
    second = Starlette(
        routes=[*_PROBES, _METRICS],
        middleware=[Middleware(GatewayMiddleware)],
        exception_handlers={HTTPException: _unknown},
    )
    second.state = app.state
    return second


@contextlib.asynccontextmanager
async def _lifespan(
    make: Callable[[], Services], mounts: Sequence[Mount], end_waits: Callable[[], None], app: Starlette
) -> AsyncIterator[None]:
    services = await run_in_threadpool(make)
    config = services.config  # a thread for each request and response, which keys share already
    anyio.to_thread.current_default_thread_limiter().total_tokens = config.max_connections + config.max_responses
    async with contextlib.AsyncExitStack() as opened:  # all are closed, also if one fails to
        opened.push_async_callback(run_in_threadpool, services.close)
        opened.push_async_callback(services.upstream.aclose)
        app.state.services, app.state.mounted = services, {}
        app.state.readiness = readiness = Readiness(services)
        opened.push_async_callback(readiness.close)
        app.state.scrapes = anyio.CapacityLimiter(1)  # strangers may ask for them: they take no thread of others
        app.state.jobs = jobs = Jobs(config, services.pool, services.containers.queue, end_waits, services.keys.has)
        opened.push_async_callback(jobs.close)
        app.state.sockets = sockets = ResponseSockets(config)
        opened.push_async_callback(sockets.close)
        services.end_jobs_of, jobs.failed = jobs.end_of, services.job_failed
        services.metrics.queue.set_function(lambda: services.containers.queue.waiting)
        services.metrics.sockets.set_function(lambda: sockets.open)
        for mount in mounts:
            if mount.wants_users and not services.keys.has_users:
                _log.warning(_NO_USERS, mount.path)
            door = mount.open(services.containers, services.store)
            app.state.mounted[mount.path] = await opened.enter_async_context(door)
        yield


async def health(_: Request) -> Response:
    """GET /health: the process answers."""
    return JsonResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: the engine, the database and the upstream answer, and no image is being pulled or built."""
    line = preparing()
    checks = await request.app.state.readiness.check()
    is_ready = all(checks.values()) and not line
    image = {"image": line} if line else {}
    return JsonResponse({"status": "ok" if is_ready else "unavailable", **checks, **image}, 200 if is_ready else 503)


async def metrics(request: Request) -> Response:
    """GET /metrics, for Prometheus."""
    services = services_of(request)
    if services.metrics.is_readiness_old():
        await request.app.state.readiness.check()
    text = await anyio.to_thread.run_sync(_rendered, services, limiter=request.app.state.scrapes)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _rendered(services: Services) -> bytes:
    """Return all metrics. It blocks: there may be many, and a disk of another machine may be away."""
    services.metrics.disk(services.shares.free(services.config.data_dir), services.config.min_disk_free)
    return services.metrics.text()


async def resource_metadata(request: Request) -> Response:
    """GET /.well-known/oauth-protected-resource: the identity provider whose tokens open the gateway, or a mount."""
    sign_on = services_of(request).keys.sign_on
    door = sign_on.door_of(request.path_params["door"], request.app.state.mounted) if sign_on else None
    if sign_on is None or door is None:
        raise ApiError(404, "No identity provider is known for this path.", code="unknown_url")
    return JsonResponse(sign_on.resource_metadata(door))


_PROBES = [Route("/health", health, methods=["GET"]), Route("/ready", ready, methods=["GET"])]
_METRICS = Route("/metrics", metrics, methods=["GET"])


_HERE = (
    *("chat/completions", "containers", "conversations", "files", "messages", "models", "responses", "skills"),
    "uploads",
)


async def _unknown(request: Request, exc: Exception) -> Response:
    """Answer a request for a route, or for a method of one, that does not exist; leave others to the middleware."""
    if isinstance(exc, BodyRefused):
        raise client_error(exc) from exc
    path = request.scope["path"]
    if not (isinstance(exc, HTTPException) and exc.status_code == 404):
        return failed(exc, path)
    passed = services_of(request).config.endpoints
    if path.lstrip("/").startswith((*_HERE, *passed)):
        message = f"{path[:80]} does not exist here. Did you mean /v1{path[:80]}? The base URL of clients ends in /v1."
        return failed(ApiError(404, message, code="unknown_url"), path)
    if not path.startswith("/v1/"):
        return failed(exc, path)
    message = f"{path[:80]} does not exist here. Paths below /v1: {', '.join(_HERE)}."
    if passed:
        message = f"{message} These are passed on to the upstream: {', '.join(passed)}."
    return failed(ApiError(404, message, code="unknown_url"), path)
