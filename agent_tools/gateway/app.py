"""The gateway as an ASGI application: its routes behind the door, and its services for as long as it runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.errors import AgentToolsError
from agent_tools.gateway import container_routes, conversation_routes, passed_on
from agent_tools.gateway.chat import routes as chat_routes
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.door import Door, failed
from agent_tools.gateway.http import Json, services_of
from agent_tools.gateway.jobs.jobs import Jobs
from agent_tools.gateway.mounts import Mount
from agent_tools.gateway.page import routes as page_routes
from agent_tools.gateway.responses import routes as response_routes
from agent_tools.gateway.responses.tokens import compact
from agent_tools.gateway.responses.tokens import routes as token_routes
from agent_tools.gateway.services import Services
from agent_tools.gateway.telemetry.tracing import Tracer
from agent_tools.runtime.runtime import Runtime

READY_PATIENCE = 5.0  # seconds in which the database answers /ready


def create_app(
    config: GatewayConfig, runtime: Runtime, tracer: Tracer | None = None, mounts: Sequence[Mount] = ()
) -> Starlette:
    """Build the application. Sandboxes, connections and the store exist while its lifespan does."""
    routes = [
        *(*token_routes.routes, *compact.routes, *response_routes.routes, *container_routes.routes),
        *(*conversation_routes.routes, *chat_routes.routes),
        *(*page_routes.routes, *passed_on.routes(config.endpoints), *_PROBES),
        *([] if config.metrics_port is not None else [_METRICS]),
        *(mount.route() for mount in mounts),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Door, owned=[mount.path for mount in mounts])],
        exception_handlers={HTTPException: _unknown},
        lifespan=partial(_lifespan, partial(Services, config, runtime, tracer), mounts),
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host
    return app


def create_second_app(app: Starlette) -> Starlette:
    """Build the application of the second port, on the services of the first one's."""
    second = Starlette(
        routes=[*_PROBES, _METRICS], middleware=[Middleware(Door)], exception_handlers={HTTPException: _unknown}
    )
    second.state = app.state
    return second


@contextlib.asynccontextmanager
async def _lifespan(make: Callable[[], Services], mounts: Sequence[Mount], app: Starlette) -> AsyncIterator[None]:
    services = await run_in_threadpool(make)
    app.state.services, app.state.mounted = services, {}
    app.state.jobs = Jobs(services.config, services.pool, services.metrics.queue_seconds.observe)
    services.end_jobs_of = app.state.jobs.end_of
    services.metrics.queue.set_function(lambda: app.state.jobs.admission.waiting)
    try:
        async with contextlib.AsyncExitStack() as opened:
            for mount in mounts:
                door = mount.open(services.containers, services.store)
                app.state.mounted[mount.path] = await opened.enter_async_context(door)
            yield
    finally:
        await app.state.jobs.close()
        await services.upstream.aclose()
        await services.peers.aclose()
        await run_in_threadpool(services.close)


async def health(_: Request) -> Response:
    """GET /health: the process answers."""
    return Json({"status": "ok"})


async def ready(request: Request) -> Response:
    """GET /ready: the engine, the database and the upstream answer."""
    services = services_of(request)
    checks = {
        "engine": await run_in_threadpool(_engine_answers, services.runtime),
        "upstream": await services.upstream.is_ready(),
        "database": await _database_answers(services),
    }
    return Json(
        {"status": "ok" if all(checks.values()) else "unavailable", **checks}, 200 if all(checks.values()) else 503
    )


async def metrics(request: Request) -> Response:
    """GET /metrics, for Prometheus."""
    return Response(services_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _database_answers(services: Services) -> bool:
    with anyio.move_on_after(READY_PATIENCE):
        return await anyio.to_thread.run_sync(services.store.answers, abandon_on_cancel=True)
    return False


def _engine_answers(runtime: Runtime) -> bool:
    try:
        runtime.engine.guest()
    except AgentToolsError:
        return False
    return True


_PROBES = [Route("/health", health, methods=["GET"]), Route("/ready", ready, methods=["GET"])]
_METRICS = Route("/metrics", metrics, methods=["GET"])


async def _unknown(_: Request, exc: Exception) -> Response:
    """Answer a request for a route, or for a method of one, that does not exist."""
    return failed(exc)
