"""The middleware of all requests: it finds the owner of each, limits and counts it, and answers every failure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from agent_tools.bodies.connections import EndingConnection
from agent_tools.bodies.json_body import body_owner
from agent_tools.containers.ids import new_id
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import ANTHROPIC
from agent_tools.gateway.http import JsonResponse, record_request
from agent_tools.gateway.log import request_id
from agent_tools.gateway.requests.api_errors import ApiError, Refusal
from agent_tools.gateway.requests.auth import AcceptedKey, key_of
from agent_tools.gateway.requests.body import Body, unpacked
from agent_tools.gateway.services import Services
from agent_tools.tracing import continue_trace

_OWNED = (
    "/v1/",
    "/page/run",
    "/page/stop",
    "/page/state",
    "/page/operator",
    "/page/chats",
    "/page/responses",
)  # paths that have an owner, and need a key if there are any
_POLLED = ("/page/state", "/page/operator")  # every few seconds by a page that is open: no request that its user sends
_BEGINNINGS = ("http.response.start", "websocket.accept", "websocket.http.response.start")  # of an answer
_AZURES = re.compile(r"/openai/(?:v1/|deployments/[^/]+/)?")
_GONE = 499  # the client left before there was an answer


class GatewayMiddleware:
    """Middleware around all routes. Failures are answered in the API's own shape."""

    def __init__(
        self,
        app: ASGIApp,
        owned: Sequence[str] = (),
        public: Sequence[str] = (),
        trees: Sequence[str] = (),
        secret: Collection[str] = (),
    ) -> None:
        self._app = app
        self._doors = tuple(owned)
        self._owned = (*_OWNED, *owned)
        self._public = frozenset(public)
        self._trees = tuple(trees)
        self._secret = frozenset(secret)  # doors whose paths may hold a key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        is_socket = scope["type"] == "websocket"
        services: Services = scope["app"].state.services
        request_id.set(new_id("req"))
        scope = _below(services.config.root_path, scope)
        door = self._door(scope)
        ending = EndingConnection(scope, receive, send)
        if is_socket and scope["path"].startswith(self._trees):
            await self._connect(services, scope, door, ending)
            return
        body = Body(ending.receive, services.config, Headers(scope=scope))
        answer = _Sender(ending.send, body)
        scope["extra_headers"] = answer.extra_headers
        received: object = body
        started = time.monotonic()
        if services.tracing:
            continue_trace(Headers(scope=scope))
        with ExitStack() as counted:
            if not is_socket:
                counted.enter_context(services.metrics.in_flight.track_inprogress())
            try:
                await _let_in(services, scope, self._owned, self._public, door)
                if owner := scope.get("owner"):
                    counted.enter_context(services.in_progress.place(owner))
                    scope.get("identified", _no_need)()
                if is_socket:
                    await self._app(scope, ending.receive, answer)
                else:
                    scope, received = unpacked(scope, body, services.decompression_budget)
                    await self._app(scope, received, answer)
            except Exception as exc:
                if isinstance(exc, Refusal):
                    services.metrics.security(exc.event)
                if answer.status:
                    raise
                response = failed(exc, scope["path"], partial(_record_failure, services, scope))
                response = _challenged(response, services, scope, door)
                await response(scope, receive, answer)
            finally:
                services.decompression_budget.release(received)
                status = answer.status or _GONE
                record_request(services, scope, status, started, method=scope.get("method", "GET"))

    def _door(self, scope: Scope) -> str:
        """Return the path of the mount that a request is for, '' for none. It is logged in place of one with a key."""
        door = next((each for each in self._doors if f"{scope['path']}/".startswith(f"{each}/")), "")
        if door in self._secret:
            scope["logged_path"] = door
        return door

    async def _connect(self, services: Services, scope: Scope, door: str, ending: EndingConnection) -> None:
        """Serve a WebSocket of a mount, which calls `authenticate` with a message's key if the head has none."""
        started, sockets = time.monotonic(), scope["app"].state.sockets
        with ExitStack() as stack:

            def enter(owner: str) -> None:
                stack.enter_context(services.in_progress.place(owner))
                stack.enter_context(sockets.place(owner))

            scope["authenticate"] = authenticate = partial(_authenticate_socket, services, scope, door, enter)
            scope["refusal"] = None
            try:
                if (key := key_of(Headers(scope=scope))) and not await authenticate(key):
                    raise scope["refusal"]
                with suppress(WebSocketDisconnect):  # the client left before it was answered
                    await self._app(scope, ending.receive, ending.send)
            except ApiError as exc:
                await _challenged(failed(exc), services, scope, door)(scope, ending.receive, ending.send)
            finally:
                refused = scope["refusal"].status if scope["refusal"] else 401
                record_request(services, scope, 101 if "owner" in scope else refused, started)


def failed(exc: Exception, path: str = "", note: Callable[[ApiError], None] = lambda _: None) -> Response:
    """Return the answer for a failed request, in the format of the API at its path, and note why it failed."""
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=_GONE)
    headers: Mapping[str, str] = {}
    if isinstance(exc, HTTPException):
        headers = exc.headers or {}  # such as the methods of a route
        exc = ApiError(exc.status_code, f"{exc.detail}.", code="unknown_url" if exc.status_code == 404 else None)
    error = client_error(exc)
    note(error)
    is_anthropics = path.removeprefix("/v1/") in ANTHROPIC
    body = error.anthropics_body if is_anthropics else error.body
    if not path.startswith("/v1/"):  # clients of wires read one of these
        body = {**body, "code": error.status, "message": error.message, "detail": error.message}
    return JsonResponse(body, error.status, {**headers, **error.headers})


def _record_failure(services: Services, scope: Scope, error: ApiError) -> None:
    if scope.get("owner"):
        services.failures.refused(error, scope["key_name"], scope["user"])


def _challenged(response: Response, services: Services, scope: Scope, door: str) -> Response:
    """Return the answer, which says where tokens come from if one is missing."""
    if response.status_code == 401 and (sign_on := services.keys.sign_on):
        has_token = bool(key_of(Headers(scope=scope)))
        response.headers["www-authenticate"] = sign_on.challenge(door, has_token=has_token)
    return response


def _below(root: str, scope: Scope) -> Scope:
    """Return a request with its path below the gateway's root: without a proxy's prefix, and without Azure's.

    Azure's clients ask for `/openai/v1/NAME`, `/openai/NAME` or `/openai/deployments/MODEL/NAME`, with `api-version` in
    the query, which is ignored; the body names the model, too.
    """
    path = str(scope["path"])
    if root and path.startswith(f"{root}/"):
        path = path.removeprefix(root)
    if azures := _AZURES.match(path):
        path = f"/v1/{path[azures.end() :]}"
    return scope if path == scope["path"] else {**scope, "path": path}


async def _authenticate_socket(
    services: Services, scope: Scope, door: str, enter: Callable[[str], None], key: str, *, in_path: bool = False
) -> bool:
    """Set the owner of a WebSocket by its key, for whom it then enters; return False if the client is refused.

    Then `refusal` of the scope is the reason, if it is not the key's kind.

    A key may stand in the path; a token may not, since its user does not choose who logs paths on the way. Browsers let
    any page open a WebSocket, so other origins are refused, except with keys of servers.
    """
    headers = {**Headers(scope=scope), "authorization": f"Bearer {key}"}
    try:
        if not in_path:
            await services.keys.prepare(key)
        caller = services.keys.caller(headers, door)
        scope["key_name"] = caller.name
        if in_path and caller.user:
            return False
        is_foreign = "origin" in headers and urlsplit(headers["origin"]).netloc != headers.get("host")
        if is_foreign and not caller.for_users:
            raise Refusal("foreign_origin", 403, "Pages of another origin are refused.", "foreign_origin")
        services.rates.check(caller)
        enter(caller.owner)
    except ApiError as exc:
        if isinstance(exc, Refusal):
            services.metrics.security(exc.event)
        scope["refusal"] = exc
        return False
    scope["identified"]()
    _set_owner(scope, caller)
    return True


async def _let_in(services: Services, scope: Scope, owned: tuple[str, ...], public: Collection[str], door: str) -> None:
    """Set the request's owner, or refuse it.

    Raises:
        Refusal: it has no owner, or its length is ambiguous.
    """
    headers = Headers(scope=scope)
    is_chunked = "transfer-encoding" in headers
    if is_chunked and ("content-length" in headers or scope["http_version"] == "1.0"):
        raise Refusal(
            "malformed", 400, "Give a body's length in one way only: by Content-Length, or by chunks in HTTP/1.1."
        )
    if scope["path"] in public and not key_of(headers):
        services.keys.refuse_strangers(headers)
        scope["owner"], scope["for_users"] = "", False
    elif scope["path"].startswith(owned):
        await services.keys.prepare(key_of(headers))
        caller = services.keys.caller(headers, door)
        _set_owner(scope, caller)
        if scope["type"] == "http" and scope["path"] not in _POLLED:
            services.rates.check(caller)  # of a WebSocket, each of its responses is counted
    else:
        services.keys.refuse_strangers(headers, may_link=scope.get("method") == "GET")


def _set_owner(scope: Scope, caller: AcceptedKey) -> None:
    body_owner.set(caller.owner)
    scope["owner"], scope["key_name"], scope["for_users"] = caller.owner, caller.name, caller.for_users
    scope["user"], scope["operator"] = caller.user, caller.operator
    if scope["type"] == "websocket" or scope.get("method") == "GET":
        scope["ends_at"] = caller.expires_at  # other requests run to their end, within their own limits


def _no_need() -> None:
    """Do nothing: a connection of the second port makes room for no other."""


class _Sender:
    """Sends an answer with an id, notes its status, and closes the connection if the body was not read."""

    def __init__(self, send: Send, body: Body) -> None:
        self._send = send
        self._body = body
        self.status = 0
        self.extra_headers: dict[str, str] = {}  # further headers, which routes add

    async def __call__(self, message: Message) -> None:
        if message["type"] in _BEGINNINGS:
            self.status = message.get("status", 101)
            headers = [*message.get("headers", ()), (b"x-request-id", request_id.get().encode())]
            headers += [(name.encode(), value.encode()) for name, value in self.extra_headers.items()]
            if message["type"] == "http.response.start" and not self._body.is_read:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)
