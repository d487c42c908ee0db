"""One client's connection: a server's, behind limits on connections, heads, and the frames of WebSockets.

uvicorn reads and writes HTTP and WebSockets; here its protocol stands behind one that sees only bytes, the transport,
and when the application is called. No server does this by its settings: measured, 200 slow heads lock others out of
uvicorn, small frames stop uvicorn and hypercorn for two seconds, granian reads them without end, none of the three ends
a message that does not come, and none makes room for a client with a key. nginx neither counts frames nor knows owners.

The application enforces the deadline of a body, since it knows when it reads one. Responses have no deadline, since
streams may be long. At the limit, the oldest unidentified connection is closed: one that serves neither a request nor
a WebSocket whose owner is known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, TypeVar

import anyio
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tools.bodies.error_body import error_body
from agent_tools.bodies.frames import FrameBudget
from agent_tools.limits import MIB
from agent_tools.machine.race import race

LINGER_SECONDS = 5.0  # in which a client must read some of the rest, once its connection is closed
MAX_DROPPED = 16 * MIB  # bytes that are received and dropped until then
POLICY_VIOLATION = 1008  # https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1
T = TypeVar("T")
CutEvent = Literal["malformed", "late", "too_many_connections"]
"""The reason for which a connection was closed early."""


@dataclass(frozen=True)
class Connections:
    """The state that all connections share. `note` counts connections that are closed early.

    Attributes:
        message_timeout: seconds in which a message of a WebSocket must come, and `1 / min_rate` more for each byte.
        unidentified: the connections without an owner, the oldest first: their head or key has not come, they request a
            public path, or they are ending.
    """

    maximum: int
    head_timeout: float
    note: Callable[[CutEvent], None]
    message_timeout: float = math.inf
    min_rate: float = math.inf
    unidentified: dict[Any, None] = field(default_factory=dict)
    open: set[Any] = field(default_factory=set)

    def bound(self, app: ASGIApp, **options: Any) -> uvicorn.Config:
        """Return the configuration of a uvicorn server whose connections these are.

        The requests' scopes have `identified`, which the application calls once it knows the owner of a request.
        """
        config = uvicorn.Config(_InConnection(app), http="h11", **options)
        log = logging.getLogger("uvicorn.error")
        log.setLevel(max(log.getEffectiveLevel(), logging.INFO))  # at DEBUG it has the messages of WebSockets
        log.addFilter(_without_paths)
        config.load()
        kind: Any = partial(ClientConnection, self, config.http_protocol_class)
        config.http_protocol_class = kind
        return config


def _without_paths(record: logging.LogRecord) -> bool:
    """Leave out uvicorn's line for each WebSocket, whose path may hold a key. The access log has one without."""
    return '"WebSocket %s"' not in str(record.msg)


_connection: ContextVar[ClientConnection] = ContextVar("connection")


class ClientConnection:
    """A connection, around the protocol that uvicorn makes of `kind` with its own arguments."""

    def __init__(self, shared: Connections, kind: Callable[..., Any], **uvicorns: Any) -> None:
        self._inner = kind(**uvicorns)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._context.run(_connection.set, self)  # so that the requests' tasks know it
        self._deadline: asyncio.TimerHandle | None = None
        self._requests = 0
        self._frames: FrameBudget | None = None  # of a WebSocket
        self._has_begun = self._is_cut = False
        self._message_size, self._message_began = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept the connection within the limit."""
        self._transport = LingeringTransport(transport, self._loop, self._may_send, self._upgraded)
        self._inner.connection_made(self._transport)
        self._shared.open.add(self)
        self._await_head()
        if len(self._shared.open) > self._shared.maximum:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a lost connection."""
        self._clear()
        self._shared.unidentified.pop(self, None)
        self._shared.open.discard(self)
        self._transport.forget()
        if not self._is_cut:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on the client's bytes; drop them if the connection is closing."""
        if self._transport.is_closing():
            self._transport.drop(len(data))
            return
        if self._frames:
            if not self._frames.spend(data, self._loop.time()):
                self._cut("malformed", close_frame("Too many small frames."))
                return
            self._await_message(len(data))
        elif not self._requests and not self._has_begun:
            self._has_begun = True
            self._set_deadline(self._shared.head_timeout, self._end_late)
        try:
            self._context.run(self._inner.data_received, data)
        except Exception:  # noqa: BLE001  (uvicorn fails where it has answered already, and the bytes are malformed)
            self._cut("malformed")
        if self._transport.is_closing() and not (self._frames or self._is_cut):
            self._cut("malformed")  # uvicorn has answered

    @contextmanager
    def request(self, scope: Scope) -> Iterator[Scope]:
        """Serve a request; its scope has `identified`."""
        self._clear()
        self._has_begun = False
        self._requests += 1
        try:
            yield {**scope, "identified": partial(self._shared.unidentified.pop, self, None)}
        finally:
            self._requests -= 1
            if not self._requests and not self._transport.is_closing():
                self._await_head()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._shared.unidentified.pop(self, None)
        self._transport.abort()

    def _may_send(self) -> bool:
        """Return True if the client may still be sending a request."""
        return self._is_cut or self._has_begun or bool(self._requests)

    def _upgraded(self, protocol: Any) -> None:
        """Go on as a WebSocket."""
        self._inner = protocol
        self._frames = FrameBudget(self._loop.time())

    def _await_head(self) -> None:
        """Wait for the next request head, as the newest unidentified connection."""
        self._clear()
        self._has_begun = False
        self._shared.unidentified.pop(self, None)
        self._shared.unidentified[self] = None
        self._set_deadline(self._shared.head_timeout, self._end_late)

    def _await_message(self, size: int) -> None:
        """Start or stop the deadline of the message that is coming."""
        if self._frames and self._frames.is_between:
            self._clear()
            return
        self._message_size += size
        if self._deadline is None:
            self._message_size, self._message_began = size, self._loop.time()
            self._set_deadline(self._shared.message_timeout, self._end_late_message)

    def _set_deadline(self, seconds: float, end: Callable[[], None]) -> None:
        self._clear()
        self._deadline = self._loop.call_later(seconds, end)

    def _clear(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if self._has_begun:
            self._refuse(
                "late", HTTPStatus.REQUEST_TIMEOUT, "The request's head did not come in time.", "request_timeout"
            )
        else:
            self._transport.close()

    def _end_late_message(self) -> None:
        allowed = self._shared.message_timeout + self._message_size / self._shared.min_rate
        left = self._message_began + allowed - self._loop.time()
        if left > 0 or not self._transport.is_reading():  # the server is late, as long as it does not read
            self._set_deadline(max(left, 1.0), self._end_late_message)
        else:
            self._cut("late", close_frame("The message did not come in time."))

    def _make_room(self) -> None:
        """Close the oldest unidentified connection; refuse this one if there is no other."""
        oldest = next(iter(self._shared.unidentified))
        if oldest is not self:
            self._shared.note("too_many_connections")
            oldest.abort()
        else:
            full = HTTPStatus.SERVICE_UNAVAILABLE
            self._refuse("too_many_connections", full, "Too many connections; try again later.", "overloaded")

    def _refuse(self, event: CutEvent, status: HTTPStatus, message: str, code: str) -> None:
        """Answer in place of the application, and end the connection."""
        body = json.dumps(error_body(status, message, code))
        head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._cut(event, f"{head}Connection: close\r\n\r\n{body}".encode())

    def _cut(self, event: CutEvent, last: bytes = b"") -> None:
        """Send the last bytes, and end the connection. Uvicorn is notified at once: a request in progress ends."""
        self._shared.note(event)
        self._clear()
        self._is_cut = True
        if last:
            self._transport.write(last)
        self._inner.connection_lost(None)
        self._transport.close()


class _InConnection:
    """The application in front of another one: it tells the connection which requests are served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            scope["query_string"] = b""  # uvicorn would log it, and it may hold a key
        connection = _connection.get()
        with connection.request(scope) as known:
            await self._app(known, receive, send)


def close_frame(reason: str) -> bytes:
    """Return a server's last frame of a WebSocket, for a client that breaks the limits."""
    return bytes([0x88, 2 + len(reason)]) + POLICY_VIOLATION.to_bytes(2, "big") + reason.encode()


class EndingConnection:
    """Both directions of a connection that ends when its client's token does: at `ends_at` of its scope, if it is set.

    The application sees that its client disconnects.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._is_over = False

    async def receive(self) -> Message:
        """Return the next message."""
        ends_at = self._scope.get("ends_at", math.inf)
        if ends_at == math.inf:
            return await self._receive()
        with anyio.move_on_after(ends_at - time.time()):
            return await self._receive()
        if self._scope["type"] != "websocket":
            return {"type": "http.disconnect"}
        if not self._is_over:
            self._is_over = True
            await self._send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "the token has expired"})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    async def send(self, message: Message) -> None:
        """Send a message, unless the connection is over."""
        if not self._is_over:
            await self._send(message)


class LingeringTransport:
    """A transport whose `close` lets the client read its last response, within a time limit (lingering close).

    Closing a socket with unread bytes makes the kernel reset it, and the response may be lost. So only the writing side
    is closed at first, and further received bytes are dropped. A client that reads nothing is disconnected.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_sending: Callable[[], bool],
        upgraded: Callable[[Any], None] = lambda _: None,
    ):
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self.set_protocol = upgraded
        self._is_closing = False
        self._left = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return True once either side has closed it."""
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Send the rest of the response, and close."""
        if self.is_closing():
            return
        self._is_closing = True
        if self._is_sending() and self._transport.can_write_eof():
            self._transport.resume_reading()
            self._transport.write_eof()
        else:
            self._transport.close()
        self._wait()

    def drop(self, size: int) -> None:
        """Count dropped bytes, and disconnect after too many."""
        self._dropped += size
        if self._dropped > MAX_DROPPED:
            self._transport.abort()

    def forget(self) -> None:
        """Stop the timer of a lost connection."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._end)

    def _end(self) -> None:
        if 0 < self._transport.get_write_buffer_size() < self._left:
            self._wait()
        else:
            self._transport.abort()


class InProgress:
    """Requests in progress: at most `most`, and `most_of_one` of one owner. For one event loop.

    `refusal` makes the exception for one more.
    """

    def __init__(self, most: int, most_of_one: int, refusal: Callable[[], Exception]) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._refusal = refusal
        self._by_owner: Counter[str] = Counter()

    @property
    def number(self) -> int:
        """The number of requests."""
        return self._by_owner.total()

    @contextmanager
    def place(self, owner: str) -> Iterator[None]:
        """Count a request until it ends; raise the refusal if it is one too many."""
        if self.number >= self._most or self._by_owner[owner] >= self._most_of_one:
            raise self._refusal()
        self._by_owner[owner] += 1
        try:
            yield
        finally:
            self._by_owner[owner] -= 1
            self._by_owner += Counter()  # forgets owners that have none


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> asyncio.Future[T]:
    """Return work that has ended; if its client disconnects before, it is cancelled."""
    working = asyncio.ensure_future(work)
    await race(working, _disconnected(receive))
    return working


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
