"""A gateway in the event loop of a test, and what happens in that loop's thread."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.responses import Response

from agent_tools.bodies.json_body import LARGE
from agent_tools.gateway.app import create_app
from agent_tools.gateway.config import GatewayConfig
from agent_tools.runtime.runtime import Runtime


@contextlib.asynccontextmanager
async def serving(config: GatewayConfig, runtime: Runtime) -> AsyncIterator[tuple[httpx.AsyncClient, Starlette]]:
    app = create_app(config, runtime)

    async def connected(scope: Any, *channels: Any) -> None:
        await app({**scope, "identified": lambda: None}, *channels)  # as a connection of the server does

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(connected), base_url="http://localhost", timeout=60) as client,
    ):
        yield client, app


class SocketHere:
    """A client of the WebSocket of responses. `sent` is what the gateway has sent."""

    def __init__(self, app: Starlette) -> None:
        self.sent: list[dict[str, Any]] = []
        self._came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._came.put_nowait({"type": "websocket.connect"})
        scope = {"type": "websocket", "path": "/v1/responses", "query_string": b"", "scheme": "ws", "subprotocols": []}
        scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "http_version": "1.1"}
        self._served = asyncio.ensure_future(app({**scope, "identified": lambda: None}, self._came.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def ask(self, request: str) -> None:
        self._came.put_nowait({"type": "websocket.receive", "text": request})

    async def leave(self) -> None:
        self._came.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self._served


async def until_true(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (nothing tells)
        await asyncio.sleep(0.01)


class LargeJsonHere:
    """Notes every large text of JSON or base64 that is read or written in the thread that enters it."""

    def __init__(self) -> None:
        self.sizes: list[tuple[str, int]] = []

    def __enter__(self) -> LargeJsonHere:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and frame.f_code is json.loads.__code__:
            self._note("parsed", frame.f_locals["s"])
        elif event == "return" and frame.f_code is json.dumps.__code__:
            self._note("written", value)
        elif event == "return" and frame.f_code is Response.render.__code__:
            self._note("rendered", value)
        elif event == "return" and frame.f_code in (base64.b64decode.__code__, base64.b64encode.__code__):
            self._note("base64", value)

    def _note(self, what: str, text: Any) -> None:
        if isinstance(text, (str, bytes, bytearray)) and len(text) > LARGE:
            self.sizes.append((what, len(text)))
