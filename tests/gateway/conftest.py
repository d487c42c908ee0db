"""A gateway on a port of this machine, before a scripted upstream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from agent_tools.containers.mount import Mount
from agent_tools.gateway.app import create_app
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.services import Services
from agent_tools.gateway.serving.run import Server
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedServer
from tests.doubles import ProcessEngine
from tests.recorder import Recorder


class _Server(Server):
    """A server that stops as soon as it is told to: uvicorn looks ten times a second whether it is."""

    _loop: asyncio.AbstractEventLoop | None = None  # None: it does not serve yet, or could not

    def stop(self) -> None:
        """Stop serving. For any thread."""
        self.should_exit = True
        if self._loop:
            with contextlib.suppress(RuntimeError):  # it has stopped already
                self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        self._told, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):
            await self._told.wait()


class Gateway:
    """A gateway that serves, and clients of it."""

    def __init__(
        self,
        config: GatewayConfig,
        runtime: Runtime,
        tracing: Any,
        mounts: Sequence[Mount] = (),
        log_level: str = "warning",
        *,
        owns_runtime: bool = False,
    ) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio has it where it listens itself
        self.app = create_app(config, runtime, tracing, mounts, owns_runtime=owns_runtime)
        self._server = _Server(config, self.app, log_level=log_level, lifespan="on")
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._started = threading.Event()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Gateway:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._started.wait(0.01)
        assert self._server.started
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._server.stop()
        self._thread.join()
        self._socket.close()

    def client(self, key: str = "any-key-at-all", **options: Any) -> openai.OpenAI:
        options = {"max_retries": 0, **options}
        return self._stack.enter_context(openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **options))

    @property
    def second_port(self) -> int:
        assert self._server.second_port
        return int(self._server.second_port.socket.getsockname()[1])

    @property
    def protocols(self) -> set[Any]:
        """The open connections, as uvicorn knows them."""
        return self._server.server_state.connections

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services


@pytest.fixture
def process_runtime() -> Iterator[Runtime]:
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    yield runtime
    runtime.close_all()


NewGateway = Callable[..., Gateway]


@pytest.fixture
def new_gateway(process_runtime: Runtime, work_dir: Path) -> Iterator[NewGateway]:
    """Makes gateways before an upstream of scripts, one for each model."""
    with contextlib.ExitStack() as stack:

        def make(
            models: dict[str, Any],
            runtime: Runtime = process_runtime,
            tracing: Any = None,
            mounts: Sequence[Mount] = (),
            log_level: str = "warning",
            owns_runtime: bool = False,
            **options: Any,
        ) -> Gateway:
            server = stack.enter_context(ScriptedServer(models))
            settings = {
                "upstream": server.base_url,
                "data_dir": work_dir / "data",
                "shutdown_grace": 0.1,
                "pool": 0,
                "router_tools": ("execute_python",),
                **options,
            }
            config = GatewayConfig(**settings)
            gateway = Gateway(config, runtime, tracing, mounts, log_level, owns_runtime=owns_runtime)
            stack.enter_context(gateway)
            gateway.upstream = server  # type: ignore[attr-defined]
            return gateway

        yield make


New = Callable[..., tuple[Gateway, Recorder]]


@pytest.fixture
def new(new_gateway: NewGateway) -> Iterator[New]:
    """Makes a gateway with a key of its own, before an upstream that notes what it is sent."""
    with Recorder() as recorder:

        def make(**options: Any) -> tuple[Gateway, Recorder]:
            settings = {"upstream": recorder.base_url, "upstream_key": "operators-key", **options}
            return new_gateway({}, **settings), recorder

        yield make
