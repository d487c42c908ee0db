"""A server over HTTP: of its own, or an ASGI application inside another server that says who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.containers.keys import LOOPBACK, Keys, bearer
from agent_tools.marks import has_more_parts
from agent_tools.mcp.activity import Prepare
from agent_tools.mcp.config import Bounds, McpConfig
from agent_tools.mcp.handles import Stock
from agent_tools.mcp.own_containers import own_containers
from agent_tools.mcp.server import make_server
from agent_tools.runtime.runtime import Runtime

PATH = "/mcp"
LAST_SECONDS = 5  # for calls that are under way when the server is told to stop


@asynccontextmanager
async def application(
    stock: Stock, prepare: Prepare, bounds: Bounds, security: TransportSecuritySettings | None, max_body_bytes: int
) -> AsyncIterator[ASGIApp]:
    """Have an application whose requests' scopes name their `owner`."""
    manager = StreamableHTTPSessionManager(
        make_server(stock, prepare, bounds),
        security_settings=security,
        max_request_body_size=max_body_bytes,
        max_sessions=bounds.max_sessions,
    )

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        token = AccessToken(token="", client_id=scope["owner"], scopes=[])
        await manager.handle_request({**scope, "user": AuthenticatedUser(token)}, receive, send)  # owns its session

    async with manager.run():
        yield serve


def serve(config: McpConfig, runtime: Runtime, prepare: Prepare) -> None:
    """Serve until SIGINT or SIGTERM; then nothing is left of what ran."""
    app = create_app(config, runtime, prepare)
    options: dict[str, Any] = {"server_header": False, "ws": "none", "timeout_graceful_shutdown": LAST_SECONDS}
    uvicorn.run(app, host=config.host, port=config.port, log_level="info", **options)


def create_app(config: McpConfig, runtime: Runtime, prepare: Prepare) -> Starlette:
    """Return the application of a server of its own; its containers exist while its lifespan does."""
    door = _Door(config)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with (
            own_containers(config, runtime, is_alone=False) as stock,
            application(stock, prepare, config, _security(config), config.max_body_bytes) as door.inner,
        ):
            yield

    app = Starlette(routes=[Route(PATH, door, methods=["GET", "POST", "DELETE"])], lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


def _security(config: McpConfig) -> TransportSecuritySettings | None:
    """Return what keeps web pages out of a server without keys: names and origins of this machine only."""
    if config.api_keys:
        return None
    names = [f"[{host}]" if ":" in host else host for host in LOOPBACK]
    return TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[f"http://{name}:*" for name in names],
    )


class _Door:
    """Lets those in who have a key, and bodies that cost no more to read than they may."""

    def __init__(self, config: McpConfig) -> None:
        self.inner: ASGIApp
        self._keys = Keys(config.api_keys)
        self._most = config.max_body_bytes
        self._parts = config.max_body_parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        owner = self._keys.owner_of(bearer(Headers(scope=scope).get("authorization", "")))
        if owner is None:
            answer = PlainTextResponse("Send a key: 'Authorization: Bearer KEY'.", 401, {"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        body = await self._body(receive) if scope["method"] == "POST" else b""
        if body is None:
            message = f"The request is too large: {self._most:,} bytes, {self._parts:,} commas and brackets at most."
            await PlainTextResponse(message, 413)(scope, receive, send)
            return
        await self.inner({**scope, "owner": owner}, _Again(body, receive), send)

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
