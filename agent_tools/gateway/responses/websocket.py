"""`/v1/responses` over a WebSocket: each `response.create` starts a response, whose events come back as text messages.

https://developers.openai.com/api/docs/guides/websocket-mode and https://www.openresponses.org/specification

Theory of operation
    A socket is another writer of the events of `ResponseJob`. Requests with the same `stream_id` wait for each other,
    others run beside them, and the events repeat the `stream_id`. The newest responses with `store: false` stay in
    memory for as long as their connection lasts, so that the next one can build on them. A response that fails before
    the model has said anything is answered by one `error` event with the status that HTTP would have; one that fails
    later ends with `response.failed` alone, since clients take either for the end of a response.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_tools.bodies.connections import InProgress
from agent_tools.bodies.json_body import BodyRefused, sized, written
from agent_tools.containers.ids import new_id
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.recent_values import RecentValues
from agent_tools.gateway.event_log import encoded
from agent_tools.gateway.http import parsed, record_request
from agent_tools.gateway.jobs import Jobs
from agent_tools.gateway.log import request_id
from agent_tools.gateway.requests.api_errors import ApiError, Refusal, busy, invalid, stopped, too_large
from agent_tools.gateway.requests.auth import key_of
from agent_tools.gateway.requests.fields import RequestModel, at_most, read
from agent_tools.gateway.responses.job import ResponseJob, request_reader, start_job
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import SEND_TIMEOUT, unless_gone
from agent_tools.gateway.store.records import ResponseEnd
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject

LIFETIME = 3_600.0  # seconds
MAX_WAITING = 16  # requests of one connection that run or wait
MAX_RECENT = 32  # responses that one connection can build on
RECENT_BYTES = 256 * MIB  # of the conversations of all of them
MAX_STREAM_ID = 256  # characters
BEGINNING = 2  # events of every response, before it says anything
GOODBYE = 5.0  # seconds in which a client must take what is sent before the connection is closed
_UNREADABLE, _NOT_ALLOWED, _GOING, _RESTARTING = 1003, 1008, 1001, 1012
"""Codes of https://www.iana.org/assignments/websocket"""
_OF_THE_SOCKET = ("type", "stream", "stream_id", "generate", "event_id")


class _Event(RequestModel):
    stream_id: Annotated[str, at_most(MAX_STREAM_ID, "A stream_id")] = ""


class _Create(RequestModel):
    generate: bool = True


class ResponseSockets:
    """The open WebSockets of a gateway, and the newest responses of each that are stored nowhere. For one event loop.

    Attributes:
        lifetime: seconds that a connection lasts.
        ends: the tasks that serve connections, each until its end.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.lifetime = LIFETIME
        self.closing = asyncio.Event()
        self.ends: set[asyncio.Task[None]] = set()
        most = max(1, config.max_connections // 2)
        too_many = partial(busy, 429, "Too many WebSocket connections are open; close some, or try again later.", 5)
        self._places = InProgress(most, config.most_of_key(most), too_many)
        self._recent = RecentValues[tuple[object, str], ResponseEnd](RECENT_BYTES)

    @property
    def open(self) -> int:
        """The number of connections."""
        return self._places.number

    @contextmanager
    def place(self, owner: str) -> Iterator[None]:
        """Count a connection for as long as it lasts.

        Raises:
            ApiError: 429, there are too many; 503, the gateway stops.
        """
        if self.closing.is_set():
            raise stopped()
        with self._places.place(owner):
            yield

    def remember(self, owner: str, socket: object, end: ResponseEnd) -> None:
        """Store the end of a response for the next one; the oldest ones are dropped."""
        self._recent.add(owner, (socket, end.id), end, len(end.conversation) + len(end.tools))
        own = [key for key in self._recent.keys(owner) if key[0] is socket]
        if len(own) > MAX_RECENT:
            self._recent.drop(owner, own[0])

    def recall(self, owner: str, socket: object, id_: str) -> ResponseEnd | None:
        """Return the end of an earlier response of this connection, if it is still known."""
        return self._recent.get(owner, (socket, id_))

    def forget(self, owner: str, socket: object, id_: str) -> None:
        """Drop a response."""
        self._recent.drop(owner, (socket, id_))

    def forget_all(self, owner: str, socket: object) -> None:
        """Drop all responses of a connection."""
        for key in self._recent.keys(owner):
            if key[0] is socket:
                self._recent.drop(owner, key)

    async def close(self, timeout: float = 0) -> None:
        """End each connection once its active responses have ended, for which it waits `timeout` seconds."""
        self.closing.set()
        if self.ends:
            await asyncio.wait(self.ends, timeout=timeout)


async def response_socket(websocket: WebSocket) -> None:
    """GET /v1/responses, upgraded."""
    state = websocket.app.state
    with state.sockets.place(str(websocket.scope["owner"])):
        await websocket.accept()
        serving = asyncio.ensure_future(_Connection(websocket, state.services, state.jobs, state.sockets).serve())
        state.sockets.ends.add(serving)
        try:
            await serving
        finally:
            state.sockets.ends.remove(serving)


class _Connection:
    """One client's connection."""

    def __init__(self, websocket: WebSocket, services: Services, jobs: Jobs, sockets: ResponseSockets) -> None:
        self._ws = websocket
        self._services = services
        self._jobs = jobs
        self._sockets = sockets
        self._owner = str(websocket.scope["owner"])
        self._read = request_reader(services)
        self._gone = asyncio.Event()
        self._sending = asyncio.Lock()  # responses that wait for a slow client would all write at once
        self._idle = asyncio.Event()
        self._idle.set()
        self._over: Callable[[], ApiError] | None = None  # makes the reason why no further request is taken
        self._streams: dict[str, deque[tuple[JsonObject, int]]] = {}  # requests that wait, with their bytes
        self._running: set[asyncio.Task[None]] = set()
        self._number = self._bytes = 0  # of the requests that run or wait

    async def serve(self) -> None:
        """Answer the client's requests until either side ends the connection."""
        helpers = [asyncio.ensure_future(work) for work in (self._receive(), self._end_in_time())]
        try:
            await self._gone.wait()
        finally:
            self._gone.set()
            for each in helpers:
                each.cancel()
            await asyncio.gather(*helpers, *self._running, return_exceptions=True)
            self._sockets.forget_all(self._owner, self)

    async def _receive(self) -> None:
        try:
            while not self._gone.is_set():
                message = await self._ws.receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message.get("text") is None:
                    await self._refuse(invalid("Send JSON in text messages: this one is binary."))
                    await self._close(_UNREADABLE, "binary message")
                    return
                await self._take(message["text"])
        finally:
            self._gone.set()

    async def _take(self, text: str) -> None:
        """Queue a request."""
        body = text.encode("utf-8", "surrogatepass")
        try:
            given = await sized(len(body), parsed, body)
            stream_id = read(_Event, given).stream_id
            self._check(given, stream_id, len(body))
            if given["type"] == "response.steer":
                await self._count()
                await self._send(await written(given, _not_steered))
                return
        except (ApiError, BodyRefused) as exc:
            await self._refuse(error := client_error(exc))
            await self._note(error)
            return
        self._number, self._bytes = self._number + 1, self._bytes + len(body)
        self._idle.clear()
        if stream_id not in self._streams:
            self._streams[stream_id] = deque()
            task = asyncio.ensure_future(self._run(stream_id))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        self._streams[stream_id].append((given, len(body)))

    async def _count(self) -> None:
        """Count a request of the client's key.

        Raises:
            ApiError: 401, the key is not accepted any more; 429, there were too many.
        """
        await self._services.keys.prepare(key_of(self._ws.headers))
        self._services.rates.check(self._services.keys.caller(self._ws.headers))

    def _check(self, given: JsonObject, stream_id: str, size: int) -> None:
        if self._over:
            raise self._over()
        if given.get("type") not in ("response.create", "response.steer"):
            raise invalid("Unknown event: expected 'response.create'.", "type", "invalid_value")
        if given.get("background"):
            message = "A response of a WebSocket cannot be in the background: send it by HTTP."
            raise invalid(message, "background", "unsupported_value")
        if self._number >= MAX_WAITING:
            raise busy(429, f"{MAX_WAITING} responses of this connection are running; wait for one.", 1)
        if self._number and self._bytes + size > self._services.config.max_body_bytes:
            raise too_large("The requests of this connection that wait are too large; wait for a response's end.")

    async def _run(self, stream_id: str) -> None:
        """Answer the requests of one stream, one after another."""
        waiting = self._streams[stream_id]
        while waiting and not self._gone.is_set():
            given, size = waiting.popleft()
            await self._answer(given, size, stream_id)
            self._number, self._bytes = self._number - 1, self._bytes - size
        del self._streams[stream_id]
        if not self._streams:
            self._idle.set()

    async def _answer(self, given: JsonObject, size: int, stream_id: str) -> None:
        """Answer one request, including failures, and count it."""
        started, metrics = time.monotonic(), self._services.metrics
        request_id.set(new_id("req"))
        with metrics.in_flight.track_inprogress():
            try:
                error = await self._respond(given, size, stream_id)
            except Exception as exc:  # noqa: BLE001  (answered, as the middleware answers any failure of a request)
                error = client_error(exc)
                await self._refuse(error, stream_id)
        if error and error.status != 499 and isinstance(previous := given.get("previous_response_id"), str):
            self._sockets.forget(self._owner, self, previous)
        status = error.status if error else 200
        record_request(self._services, self._ws.scope, status, started, route="create_response")
        await self._note(error)

    async def _note(self, error: ApiError | None) -> None:
        """Count a refusal, and end the connection if its key was revoked."""
        if isinstance(error, Refusal):
            self._services.metrics.security(error.event)
        if error and error.status == 401:
            await self._close(_NOT_ALLOWED, "the key is not accepted")

    async def _respond(self, given: JsonObject, size: int, stream_id: str) -> ApiError | None:
        """Make a response and send its events; return the error by which it failed, which the client knows then."""
        await self._count()
        body = {key: value for key, value in given.items() if key not in _OF_THE_SOCKET}
        request = await sized(size, self._read, body)
        generates = read(_Create, given).generate
        recent = self._sockets.recall(self._owner, self, request.previous_response_id or "")
        request = replace(request, generates=generates, recent=recent)
        job = await start_job(self._ws, self._hung_up, request)
        if not await unless_gone(self._send_events(job, stream_id), self._hung_up):
            self._jobs.abandon(job)
            return ApiError(499, "The client has hung up.")
        if not job.body["store"] and not job.failure:
            self._sockets.remember(self._owner, self, await run_in_threadpool(job.end))
        return job.failure

    async def _send_events(self, job: ResponseJob, stream_id: str) -> None:
        """Send the events of a response as they come, and wait for its end."""
        seen = 0
        while events := await job.log.after(seen):
            for event in events:
                if event.kind == "error":
                    await job.log.closed()
                    await self._tell_failure(job, seen, stream_id)
                    return
                await self._send(event.data, stream_id)
                seen += 1
        await job.log.closed()

    async def _tell_failure(self, job: ResponseJob, seen: int, stream_id: str) -> None:
        """Send the end of a response that failed after `seen` events."""
        if job.failure and seen <= BEGINNING:
            await self._refuse(job.failure, stream_id)
        else:
            last = job.log.events[-1]
            data = await sized(len(last.data), lambda: encoded({**last.value, "sequence_number": seen}).data)
            await self._send(data, stream_id)

    async def _refuse(self, error: ApiError, stream_id: str = "") -> None:
        shown = {"type": "error", "status": error.status, **error.body}
        if error.headers:
            shown["headers"] = {name.lower(): value for name, value in error.headers.items()}
        shown["error"]["code"] = error.code or error.kind
        await self._send(encoded(shown).data, stream_id)

    async def _send(self, data: bytes, stream_id: str = "") -> None:
        """Send an event. A client that does not read earlier events in time counts as disconnected."""
        if self._gone.is_set():
            return
        if stream_id:
            data = encoded({"stream_id": stream_id}).data[:-1] + b"," + data[1:]
        try:
            with anyio.fail_after(SEND_TIMEOUT):
                async with self._sending:
                    await self._ws.send_text(data.decode())
        except (OSError, WebSocketDisconnect, RuntimeError):  # RuntimeError: the connection is closed already
            self._gone.set()

    async def _hung_up(self) -> Message:
        """Wait until the client disconnects, as a request's `receive` does."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _end_in_time(self) -> None:
        """End the connection after its lifetime or with the gateway, once its active responses have ended."""
        with anyio.move_on_after(self._sockets.lifetime) as life:
            await self._sockets.closing.wait()
        self._over = _too_old if life.cancelled_caught else stopped
        await self._idle.wait()
        if life.cancelled_caught:
            await self._refuse(_too_old())
            await self._close(_GOING, "connection limit reached")
        else:
            await self._close(_RESTARTING, "the gateway stops")

    async def _close(self, code: int, reason: str) -> None:
        with suppress(OSError, WebSocketDisconnect, RuntimeError), anyio.move_on_after(GOODBYE):
            await self._ws.close(code, reason)
        self._gone.set()


def _too_old() -> ApiError:
    code = "websocket_connection_limit_reached"
    return invalid("The connection has reached its limit of time: open a new one.", code=code)


def _not_steered(given: JsonObject) -> bytes:
    """Return the answer to an event that would change a running response."""
    steer: dict[str, Any] = {name: given.get(name) for name in ("input", "previous_response_id")}
    message = (
        "No model here can be steered: servers of models take no input while they answer. Wait for the response's end, "
        "then send the input with 'response.create' and its 'previous_response_id'."
    )
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": message}
    return encoded({"type": "response.steer.failed", "error": error, "sequence_number": 0, "steer": steer}).data
