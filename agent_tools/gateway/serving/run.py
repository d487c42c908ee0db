"""Starts a gateway: checks its requirements, then serves until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette

from agent_tools import settings
from agent_tools.bodies.connections import Connections
from agent_tools.containers.mount import Mount
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.gateway.app import create_app, create_second_app
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.data_dir import folder_id, prepare_data_dir
from agent_tools.gateway.jobs import LAST_WORDS
from agent_tools.gateway.log import log_config
from agent_tools.gateway.membership import check_others
from agent_tools.gateway.requests.api_errors import SecurityEvent
from agent_tools.gateway.serving.second_port import SecondPort, listening
from agent_tools.gateway.serving.service_manager import notify
from agent_tools.gateway.sse import SEND_TIMEOUT
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.upstream import NO_ANSWER, Upstream

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

SWITCH_SECONDS = 0.0005
"""The time that a thread computes before another has its turn, a tenth of Python's own: an event waits for several."""


def problems(config: GatewayConfig, runtime: Runtime) -> Iterator[str]:
    """Yield each problem, with its remedy."""
    try:
        runtime.guest()
    except EngineError as exc:
        yield f"{exc} Code cannot be run before that; `agent-tools doctor` tells more."
    if problem := asyncio.run(_upstream_problem(config)):
        until = " Requests are answered 502 until it does." if problem == NO_ANSWER else ""
        yield f"The upstream {config.upstream} {problem}{until}"


async def _upstream_problem(config: GatewayConfig) -> str:
    upstream = Upstream(config)
    try:
        return await upstream.problem()
    finally:
        await upstream.aclose()


def opened_store(config: GatewayConfig) -> Store:
    """Open the store; the caller closes it.

    Raises:
        InvalidParams: the folder of the data, or the database, cannot be used.
    """
    prepare_data_dir(config.data_dir)
    try:
        return Store(config.database_url)
    except (SQLAlchemyError, ImportError) as exc:
        raise InvalidParams(
            f"The database cannot be used ({type(exc).__name__}). Check its URL, that it answers, and that its driver "
            "is installed: for postgresql+psycopg://, pip install 'psycopg[binary]'."
        ) from exc


class Server(uvicorn.Server):
    """A server that ends active jobs, and tells their clients, before it hangs up."""

    def __init__(
        self, config: GatewayConfig, app: Starlette, ready: Callable[[int], None] = lambda _: None, **options: Any
    ) -> None:
        self._close_timeout = config.shutdown_grace + LAST_WORDS
        connections = Connections(
            config.max_connections, config.head_timeout, self._record, config.body_timeout, config.min_body_rate
        )
        own = {
            "server_header": False,
            "timeout_graceful_shutdown": math.ceil(self._close_timeout) + 1,
            "access_log": False,
            "ws": "websockets-sansio",
            "ws_max_size": config.max_body_bytes,
            "ws_per_message_deflate": False,  # a small message could become a large one
            "ws_ping_interval": config.heartbeat,
            "ws_ping_timeout": SEND_TIMEOUT,
        }
        super().__init__(connections.bound(app, **{**own, **options}))
        self._app = app
        self._ready = ready
        wanted = config.metrics_port
        self.second_port = None if wanted is None else SecondPort(config.metrics_host, wanted)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell the service manager."""
        await super().startup(sockets)
        if not self.started:
            return
        if self.second_port:
            await self.second_port.open(create_second_app(self._app))
        notify(settings.notify_socket(), "READY=1")
        self._ready(self.servers[0].sockets[0].getsockname()[1])

    def _record(self, event: SecurityEvent) -> None:
        self._app.state.services.metrics.security(event)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end active jobs, close all connections. The second port answers until then."""
        notify(settings.notify_socket(), "STOPPING=1")
        for each in self.servers:
            each.close()
        state = self._app.state
        await asyncio.gather(state.jobs.close(), state.sockets.close(self._close_timeout))
        await super().shutdown(sockets)
        if self.second_port:
            await self.second_port.close()


def serve(
    config: GatewayConfig,
    runtime: Runtime,
    mounts: Sequence[Mount] = (),
    ready: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then end active jobs, tell their clients, and remove every sandbox.

    `ready` is called with the port, once clients can connect.

    Raises:
        InvalidParams: the port cannot be had; or the database cannot be used, or not together with a gateway that is
            there already.
    """
    listening(config.host, config.port, "--port").close()
    with _private_files():
        store = opened_store(config)
        try:
            check_others(store, folder_id(config.data_dir))
        finally:
            store.close()
        sys.setswitchinterval(SWITCH_SECONDS)
        app = create_app(config, runtime, mounts=mounts, owns_runtime=True)
        logs = log_config(config.log_format, config.log_level)
        gc.collect()
        gc.freeze()  # a body of many objects lets Python look for garbage: not in what was imported, too
        Server(config, app, ready, host=config.host, port=config.port, log_config=logs).run()


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Make the files that this process writes its user's alone, unless they are given another mode."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
