"""Routes of a wire: each is a function with parameters from the path, the query and a JSON body.

The types of the parameters say what is accepted, as pydantic has it; a result that is not a `Response` is sent as JSON.
FastAPI would do the same, but it parses bodies in the event loop, where a large one stops all other clients; here
`json_of` reads them, within bounds and in threads.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ValidationError, create_model
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_tools.bodies.connections import unless_disconnected
from agent_tools.bodies.files import file_body, file_form
from agent_tools.bodies.json_body import BodyRefused, json_of, written
from agent_tools.containers import failures
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.limits import MIB
from agent_tools.runtime.in_thread import in_thread

MAX_BODY = 16 * MIB
CHUNK_BYTES = MIB  # of a file that is sent
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
T = TypeVar("T")
_STATUSES: dict[type[AgentToolsError], int] = {
    failures.NotFound: 404,
    failures.ContainerExpired: 404,
    failures.TooManyContainers: 429,
    failures.KeyRevoked: 401,
    failures.FileTooLarge: 413,
    failures.FileNotWritten: 400,
    failures.StorageFull: 507,
    failures.DiskFull: 507,
    InvalidParams: 400,
}


class WireRequest:
    """A request, the owner of its key, and the state of its wire."""

    def __init__(self, request: HTTPConnection) -> None:
        self.request = cast("Request", request)  # but for a WebSocket
        self.owner: str = request.scope["owner"]
        self.wire: Any = request.app.state.wire

    def sent_form(self, most: int) -> AbstractAsyncContextManager[FormData]:
        """Receive the form of the request, with at most this number of files. Errors as for `file_form`."""
        containers = self.wire.containers
        room = containers.shares, containers.shares.containers_left, containers.config.max_upload_bytes
        return file_form(self.request, *room, most)

    def sent_file(self) -> AbstractAsyncContextManager[BinaryIO]:
        """Receive the body, which is a file. Errors as for `file_body`."""
        containers = self.wire.containers
        room = containers.shares, containers.shares.containers_left, containers.config.max_upload_bytes
        return file_body(self.request, *room)


@dataclass(frozen=True)
class Operation:
    """A route: its function, and its parameters from the query and from the body."""

    handler: Callable[..., Awaitable[Any]]
    method: str
    path: str
    query: type[BaseModel]
    body: type[BaseModel]
    is_tool: bool

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.handler.__name__.strip("_")


class Routes:
    """The routes of a wire. A function is called with the caller's side of the request, then with its parameters."""

    def __init__(
        self,
        call: Callable[[Request], Any],
        max_body: int = MAX_BODY,
        read: Callable[[Request, int, Callable[[Any], Any]], Awaitable[Any]] = json_of,
    ) -> None:
        self.operations: list[Operation] = []
        self._call = call
        self._max_body = max_body
        self._read = read

    def on(
        self, method: str, path: str, *, query: Collection[str] = (), is_tool: bool = False
    ) -> Callable[[Handler], Handler]:
        """Add a function. Its parameters are the body's, but for GET, DELETE, and those of `query`."""

        def add(handler: Handler) -> Handler:
            in_query: dict[str, Any] = {}
            in_body: dict[str, Any] = {}
            for name, field in fields_of(handler, 1).items():
                if f"{{{name}}}" not in path and f"{{{name}:path}}" not in path:
                    kept = in_query if method in ("GET", "DELETE") or name in query else in_body
                    kept[name] = field
            name = handler.__name__.strip("_")
            models = create_model(f"{name}Query", **in_query), create_model(f"{name}Body", **in_body)
            self.operations.append(Operation(handler, method, path, *models, is_tool))
            return handler

        return add

    def made(self) -> list[BaseRoute]:
        """Return them for an application."""
        return [Route(each.path, self._endpoint(each), methods=[each.method]) for each in self.operations]

    def _endpoint(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        known = inspect.signature(operation.handler).parameters

        async def endpoint(request: Request) -> Response:
            call = self._call(request)
            given = {name: value for name, value in request.path_params.items() if name in known}
            given |= query_of(request, operation.query)
            if operation.body.model_fields:
                check = partial(checked, operation.body, where="body")
                given |= await self._read(request, self._max_body, check)
            answer = await operation.handler(call, **given)
            return answer if isinstance(answer, Response) else await written(answer, Json)

        endpoint.__name__ = operation.name  # by which metrics count it
        return endpoint


def fields_of(function: Callable[..., Any], skipped: int) -> dict[str, Any]:
    """Return the parameters of a function, without the first ones, as fields for `create_model`."""
    hints = get_type_hints(function, include_extras=True)
    kept = list(inspect.signature(function).parameters.items())[skipped:]
    return {name: (hints[name], ... if each.default is each.empty else each.default) for name, each in kept}


class Json(Response):
    """An answer of JSON, in ASCII, since file names may not be valid UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return json.dumps(content, separators=(",", ":")).encode()


def application(routes: list[BaseRoute], failed: Callable[[Request, Any, int], Response] | None = None) -> Starlette:
    """Return the application of a wire; `failed` makes the answer of a failure, {"detail": ...} by default."""
    show = failed or (lambda _, detail, status: Json({"detail": detail}, status))

    async def answer(request: Request, exc: Exception) -> Response:
        return show(request, *failure_of(exc))

    handlers: Any = dict.fromkeys((HTTPException, AgentToolsError, OSError), answer)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


async def health(_: Request) -> Json:
    """Answer GET /health."""
    return Json({"status": "ok"})


def failure_of(exc: Exception) -> tuple[Any, int]:
    """Return the detail and the status for a failure of a request, of containers, or of a sandbox's path or process."""
    match exc:
        case BodyRefused(status_code=400, param=None):
            return [{"type": "json_invalid", "loc": ["body"], "msg": exc.detail}], 422
        case HTTPException():
            return exc.detail, exc.status_code
        case FileNotFoundError() | NotADirectoryError():
            return "File not found", 404
        case TimeoutError():
            return str(exc), 504
        case OSError():
            statuses = {errno.EFBIG: 413, errno.EACCES: 403, errno.EPERM: 403, errno.ENOSPC: 507, errno.EDQUOT: 507}
            return exc.strerror or str(exc), statuses.get(exc.errno or 0, 400)
        case _:
            status = next((status for kind, status in _STATUSES.items() if isinstance(exc, kind)), 503)
            return getattr(exc, "message", "") or str(exc), status


def query_of(request: Request, model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a query; `null` counts as absent, but for a text that has to be there or may be empty.

    Errors as for `checked`.
    """
    given: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        is_text = field.is_required() or field.default == ""
        values = [value for value in request.query_params.getlist(name) if is_text or value != "null"]
        if values:
            given[name] = values if "list" in str(field.annotation) else values[-1]
    return checked(model, given, "query")


def checked(model: type[BaseModel], given: object, where: str) -> dict[str, Any]:
    """Return the fields of a query or a body.

    Raises:
        HTTPException: 422, with the errors as FastAPI has them.
    """
    try:
        return dict(model.model_validate(given))
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False, include_input=False)
        raise unusable(*({**each, "loc": [where, *each["loc"]]} for each in found[:10])) from None


def unusable(*errors: dict[str, Any]) -> HTTPException:
    """Return the answer to an invalid request."""
    exc = HTTPException(422)
    exc.detail = cast("Any", list(errors))
    return exc


async def aside(work: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking function in a thread, and wait for its end."""
    return await in_thread(partial(work, *arguments), lambda: None)


def digest(*parts: str) -> str:
    """Return a digest of texts, in hex; no two lists of texts have the same."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def bundle(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output's data by MIME type as JSON values: bytes are base64."""
    return {mime: base64.b64encode(each).decode() if isinstance(each, bytes) else each for mime, each in data.items()}


async def in_pieces(size: int, read: Callable[[int, int], Awaitable[bytes | None]]) -> AsyncGenerator[bytes, None]:
    """Yield a file of this size, which `read` reads from an offset on; a file that has become shorter ends early."""
    sent = 0
    while sent < size and (piece := await read(sent, min(CHUNK_BYTES, size - sent))):
        sent += len(piece)
        yield piece


async def while_connected(request: Request, work: Awaitable[T]) -> T | None:
    """Wait for a result for a client; if the client disconnects, cancel the work, wait for its end and return None."""
    done = await unless_disconnected(request.receive, work)
    return None if done.cancelled() else done.result()
