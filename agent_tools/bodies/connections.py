"""One client's connection: uvicorn's, with a deadline for heads and a limit on connections.

The application keeps the deadline of a body, since it knows when the body is waited for. Answers have no deadline:
streams last as long as they last. A connection makes room for others unless it serves a request, or is a WebSocket,
whose owner is known.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import h11
from starlette.types import Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_tools.limits import MIB

FAREWELL = 5.0  # seconds in which a client must take some of the rest, once its connection is closed
MAX_DROPPED = 16 * MIB  # bytes that are dropped meanwhile
T = TypeVar("T")
CutEvent = Literal["malformed", "late", "too_many_connections"]
"""Why a client was cut off."""


@dataclass(frozen=True)
class Connections:
    """The state that all connections share. `note` counts the clients that are cut off.

    Attributes:
        strangers: the connections that serve no owner: they owe a head or a key, ask for what is open to everyone, or
            end. The first has been one for longest.
    """

    maximum: int
    head_timeout: float
    note: Callable[[CutEvent], None]
    has_sockets: Callable[[str], bool] = lambda _: False
    """Whether a path has WebSockets."""
    strangers: dict[Any, None] = field(default_factory=dict)


class HttpConnection(H11Protocol):
    """A connection, made by uvicorn with its own arguments."""

    def __init__(self, shared: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._shared = shared
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, if the limit allows it."""
        super().connection_made(Farewell(transport, self.loop, self._is_sending))  # type: ignore[arg-type]
        self._shared.strangers[self] = None
        self._set_deadline()
        if len(self.connections) > self._shared.maximum:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that is gone."""
        super().connection_lost(exc)
        self._clear()
        self._shared.strangers.pop(self, None)
        self.transport.forget()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Take the client's bytes; drop them if the connection is closing."""
        if self.transport.is_closing():
            self.transport.drop(len(data))  # type: ignore[attr-defined]
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next head."""
        super().on_response_complete()
        self._shared.strangers.pop(self, None)
        self._shared.strangers[self] = None  # as the newest
        self._look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to a WebSocket."""
        self._clear()
        self._shared.strangers.pop(self, None)
        super().handle_websocket_upgrade(event)

    def _should_upgrade(self) -> bool:
        """Return True for a WebSocket where there are some; any other request is served as if it had not asked.

        The connection makes room for others until the application calls `has_owner`, which it finds in the scope.
        """
        self.scope["has_owner"] = partial(self._shared.strangers.pop, self, None)  # type: ignore[typeddict-unknown-key]
        is_meant = self.scope["method"] == "GET" and self._shared.has_sockets(self.scope["path"])
        return is_meant and self._get_upgrade() == b"websocket"

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, in the API's shape, and disconnect the request that they are part of."""
        self._refuse("malformed", 400, msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _look(self) -> None:
        """Start or stop the deadline of the next head."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._clear()
            return
        if self._has_begun and self._deadline is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._shared.head_timeout, self._end_late)

    def _clear(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if self._has_begun:
            self._refuse("late", 408, "The request's head did not come in time.", "request_timeout")
        else:
            self.transport.close()

    def hang_up(self) -> None:
        """End the connection at once."""
        self._clear()
        self._shared.strangers.pop(self, None)
        self.transport.abort()

    def _make_room(self) -> None:
        """End the connection that has served no owner for longest; refuse this one if there is no other."""
        oldest = next(iter(self._shared.strangers))
        if oldest is not self:
            self._shared.note("too_many_connections")
            oldest.hang_up()
        else:
            self._refuse("too_many_connections", 503, "Too many connections; try again later.", "overloaded")

    def _refuse(self, event: CutEvent, status: int, message: str, code: str | None = None) -> None:
        """Answer in place of the application, unless an answer has begun, and end the connection."""
        self._shared.note(event)
        self._clear()
        self._is_refused = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            kind = "invalid_request_error" if status < 500 else "server_error"
            body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
            length = (b"content-length", str(len(body)).encode())
            headers = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
            for part in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    @property
    def _has_begun(self) -> bool:
        return bool(self.conn.trailing_data[0])

    def _is_sending(self) -> bool:
        """Return True if the client may still be sending a request."""
        return self._is_refused or self.conn.their_state is h11.SEND_BODY or self._has_begun


class Farewell:
    """A transport whose `close` lets the client read its last answer, and ends soon whatever the client does.

    Closing a socket with unread bytes makes the kernel reset it, and the answer may be lost. So only the writing side
    is closed at first, and bytes that still come are dropped. A client that takes nothing is hung up on.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]):
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
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
        """Send the rest of the answer, and hang up."""
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
        """Count dropped bytes, and hang up after too many."""
        self._dropped += size
        if self._dropped > MAX_DROPPED:
            self._transport.abort()

    def forget(self) -> None:
        """Stop waiting for a connection that is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(FAREWELL, self._end)

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


async def race(*works: Awaitable[Any]) -> None:
    """Wait until the first of several works ends; cancel the others, and wait for their end, too."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
