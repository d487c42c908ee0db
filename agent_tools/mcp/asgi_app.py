"""The MCP server over HTTP: on its own, or as an ASGI application inside another server that names the owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_tools.bodies.bounded_app import BoundedBodies
from agent_tools.bodies.connections import Connections, EndingConnection, InProgress
from agent_tools.bodies.sign_on import WELL_KNOWN, ProviderUnavailable, SignOn, TokenRefused, is_token
from agent_tools.containers.containers import Containers
from agent_tools.containers.keys import ANYONE, Keys, bearer, log_no_queries, web_page_refusal
from agent_tools.containers.mount import Mount
from agent_tools.containers.rows import Rows
from agent_tools.mcp.activity import Prepare
from agent_tools.mcp.config import McpConfig, McpLimits
from agent_tools.mcp.handles import Stock
from agent_tools.mcp.own_containers import own_containers
from agent_tools.mcp.server import make_server

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

PATH = "/mcp"
MAX_SESSIONS = 1_000  # of clients that speak a protocol older than 2026-07-28, at once
MAX_CONNECTIONS = 1_000  # at once
HEAD_TIMEOUT = 10.0  # seconds in which the head of a request must come
LAST_SECONDS = 2  # for calls that are under way when the server stops


class _Sessions(StreamableHTTPSessionManager):
    """The open sessions, at most `most_of_key` of one key: more are answered 503, as more than all may have are."""

    def __init__(self, most_of_key: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._most_of_key = most_of_key

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        own = sum(owner == requestor for owner in self._session_owners.values())
        return super()._admit_session(requestor) if own < self._most_of_key else None


@asynccontextmanager
async def application(
    stock: Stock, prepare: Prepare, bounds: McpLimits, max_sessions: int = MAX_SESSIONS
) -> AsyncIterator[ASGIApp]:
    """Run an application whose requests' scopes name their `owner`."""
    manager = _Sessions(
        stock.containers.config.most_of_key(max_sessions),
        make_server(stock, prepare, bounds),
        max_request_body_size=bounds.max_body_bytes,
        max_sessions=max_sessions,
    )

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        token = AccessToken(token="", client_id=scope["owner"], scopes=[])
        await manager.handle_request({**scope, "user": AuthenticatedUser(token)}, receive, send)  # owns its session

    async with manager.run():
        yield BoundedBodies(serve, bounds.max_body_bytes)


def _mounted(containers: Containers[Any], rows: Rows) -> AbstractAsyncContextManager[ASGIApp]:
    return application(Stock(containers, rows), lambda _: None, McpLimits())


MOUNT = Mount(PATH, _mounted)
"""The application inside a gateway, on its containers; its image is there when it serves."""


def serve(config: McpConfig, runtime: Runtime, prepare: Prepare) -> None:
    """Serve until SIGINT or SIGTERM; then end everything that runs."""
    app = create_app(config, runtime, prepare)
    uvicorn.Server(server_config(app, host=config.host, port=config.port, log_level=config.log_level)).run()


def server_config(app: ASGIApp, max_connections: int = MAX_CONNECTIONS, **options: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn for the application of `create_app`."""
    connections = Connections(max_connections, HEAD_TIMEOUT, lambda _: None)
    own = {"server_header": False, "ws": "none", "timeout_graceful_shutdown": LAST_SECONDS}
    return connections.bound(app, **own, **options)


def create_app(config: McpConfig, runtime: Runtime, prepare: Prepare, max_sessions: int = MAX_SESSIONS) -> Starlette:
    """Return the application of a server of its own; its containers exist while its lifespan does."""
    log_no_queries()
    sign_on = SignOn(config) if config.oidc_issuer else None
    door = _Door(Keys(config.api_keys), sign_on, config.most_of_key(MAX_CONNECTIONS))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with (
            own_containers(config, runtime, is_alone=False) as stock,
            application(stock, prepare, config, max_sessions) as door.inner,
        ):
            yield

    async def metadata(request: Request) -> Response:
        known = sign_on.door_of(request.path_params["door"], [PATH]) if sign_on else None
        if sign_on is None or known is None:
            return PlainTextResponse("No identity provider is known for this path.", 404)
        return JSONResponse(sign_on.resource_metadata(known))

    routes = [Route(PATH, door, methods=["GET", "POST", "DELETE"]), Route(WELL_KNOWN + "{door:path}", metadata)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app


class _Door:
    """Answers requests with a key or a token; without any keys, only requests of programs of this machine."""

    def __init__(self, keys: Keys, sign_on: SignOn | None, most_of_key: int) -> None:
        self.inner: ASGIApp
        self._keys = keys
        self._sign_on = sign_on
        too_many = partial(HTTPException, 429, "Your key has too many requests in progress.", {"Retry-After": "5"})
        self._in_progress = InProgress(MAX_CONNECTIONS, most_of_key, too_many)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        if not (self._keys.are_needed or self._sign_on) and (message := web_page_refusal(headers)):
            await PlainTextResponse(message, 403)(scope, receive, send)
            return
        try:
            owner = await self._owner(scope, bearer(headers.get("authorization", "")))
        except ProviderUnavailable as exc:
            await PlainTextResponse(str(exc), 503, {"Retry-After": "10"})(scope, receive, send)
        except TokenRefused as exc:
            challenge = (
                self._sign_on.challenge(PATH, has_token="authorization" in headers) if self._sign_on else "Bearer"
            )
            await PlainTextResponse(str(exc), 401, {"WWW-Authenticate": challenge})(scope, receive, send)
        else:
            with self._in_progress.place(owner):
                scope["identified"]()
                ending = EndingConnection(scope, receive, send)
                await self.inner({**scope, "owner": owner}, ending.receive, send)

    async def _owner(self, scope: Scope, given: str) -> str:
        """Return the owner of a key or a token. A stream ends with its token.

        Raises:
            TokenRefused: it is not accepted.
            ProviderUnavailable: the identity provider does not answer.
        """
        if self._keys.are_needed and (owner := self._keys.owner_of(given)):
            return owner
        if self._sign_on and is_token(given):
            await self._sign_on.prepare(given)
            user = self._sign_on.user(given, PATH)
            if scope["method"] == "GET":
                scope["ends_at"] = user.expires_at
            return user.owner
        if self._keys.are_needed or self._sign_on:
            raise TokenRefused("Send a key: 'Authorization: Bearer KEY'.")
        return ANYONE
