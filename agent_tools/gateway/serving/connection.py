"""One client's connection: uvicorn's, with a deadline for heads and a limit on connections.

The middleware keeps the deadline of a body, since it knows when the body is waited for. Answers have no deadline:
streams last as long as they last. A connection makes room for others until its client has sent a head, and a WebSocket
until its owner is known.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.failures import Refusal, SecurityEvent, late
from agent_tools.limits import KIB, MIB

# One client's WebSocket: uvicorn's, with the limits that an HTTP request has.
#
# uvicorn bounds a message (`ws_max_size`) and reads on only when the application has taken the last one. Here a message
# must also come in time, and a client may not send frames that cost more than their bytes: empty pieces or pings
# without end.

SLICE = 16 * KIB  # bytes, after which the frames in them are counted
BURST = 1_000  # frames that may come at once
RATE = 50  # further frames each second
BYTES_A_FRAME = KIB  # bytes that buy one frame more
INVALID_TEXT, POLICY_VIOLATION = 1007, 1008  # https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket, made by uvicorn with its own arguments."""

    def __init__(self, limits: GatewayConfig, shared: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.logger = self.conn.logger = _log  # the door logs connections
        self.conn.debug = False  # it would log what clients and models say
        self._limits = limits
        self._shared = shared
        self._frames_left, self._counted_at = float(BURST), self.loop.time()
        self._begun_at, self._size = 0.0, 0  # of the message that is coming
        self._deadline: asyncio.TimerHandle | None = None

    def handle_connect(self, event: Any) -> None:
        """Start the application, without the query, which uvicorn would log and which may hold a key.

        The connection makes room for others until the middleware calls `has_owner`.
        """
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["query_string"] = b""
            self.scope["has_owner"] = partial(self._shared.unknown.pop, self, None)  # type: ignore[typeddict-unknown-key]
            self._shared.add_unknown(self)

    def data_received(self, data: bytes) -> None:
        """Take the client's bytes; drop them if the connection is closing."""
        if self.transport.is_closing():
            self.transport.drop(len(data))  # type: ignore[attr-defined]
            return
        self._size += len(data)
        for start in range(0, len(data), SLICE):
            self.conn.receive_data(data[start : start + SLICE])
            if self.conn.handshake_exc is not None:  # uvicorn answers one that it has read
                self._refuse_head()
                return
            if self.conn.parser_exc is not None:
                self.handle_parser_exception()
                return
            self._count(len(self.conn.events), min(SLICE, len(data) - start))
            self.handle_events()
            if self.transport.is_closing():
                return
        self._look()

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; text that is not UTF-8 ends the connection, also where the client closes it already."""
        try:
            if self.curr_msg_data_type == "text":
                b"".join(self.frames).decode()
        except UnicodeDecodeError:
            self.frames = []
            self._cut("malformed", "The text is not UTF-8.", INVALID_TEXT)
        else:
            super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that is gone."""
        super().connection_lost(exc)
        self._clear()
        self._shared.unknown.pop(self, None)
        self.transport.forget()  # type: ignore[attr-defined]

    def hang_up(self) -> None:
        """End the connection at once."""
        self._clear()
        self._shared.unknown.pop(self, None)
        self.transport.abort()

    def shutdown(self) -> None:
        """Leave an open connection to the application, which ends its responses and closes it; one of a mount ends."""
        if self.close_sent or not self.handshake_complete or self.scope["path"].startswith(self._shared.trees):
            super().shutdown()

    def _count(self, frames: int, size: int) -> None:
        now = self.loop.time()
        earned = (now - self._counted_at) * RATE + size / BYTES_A_FRAME
        self._frames_left, self._counted_at = min(BURST, self._frames_left + earned) - frames, now
        if self._frames_left < 0:
            self._cut("malformed", "Too many small frames.")

    def _look(self) -> None:
        """Start or stop the deadline of the message that is coming."""
        if not self.frames and not self.conn.reader.buffer:
            self._clear()
        elif self._deadline is None:
            self._begun_at, self._size = self.loop.time(), 0
            self._deadline = self.loop.call_later(self._limits.body_timeout, self._end_late)

    def _end_late(self) -> None:
        patience = self._limits.body_timeout + self._size / self._limits.min_body_rate
        left = self._begun_at + patience - self.loop.time()
        if left > 0 or self.read_paused:  # while it is paused, the gateway is late
            self._deadline = self.loop.call_later(max(left, 1.0), self._end_late)
        else:
            self._cut("late", "The message did not come in time.")

    def _clear(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self, event: SecurityEvent, why: str, code: int = POLICY_VIOLATION) -> None:
        self._shared.note(event)
        self._clear()
        self.stop_keepalive()
        self.conn.fail(code, why)
        self.conn.events_received()  # what came with it is not taken
        if not self.transport.is_closing():
            self.handle_parser_exception()

    def _refuse_head(self) -> None:
        """Refuse a head that HTTP lets pass and that no WebSocket's may be."""
        self._shared.note("malformed")
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()


FAREWELL = 5.0  # seconds in which a client must take some of the rest, once its connection is closed
MAX_DROPPED = 16 * MIB  # bytes that are dropped meanwhile
SOCKET_PATH = "/responses"  # the end of the one path of the gateway's own that has WebSockets
MAX_UNKNOWN = 64  # WebSockets whose owner is not known yet


@dataclass(frozen=True)
class Connections:
    """The state that all connections share. `note` counts the clients that are cut off.

    Attributes:
        idle: the connections that owe a head, the oldest first.
        unknown: the WebSockets whose owner is not known yet, the oldest first.
    """

    maximum: int
    head_timeout: float
    note: Callable[[SecurityEvent], None]
    trees: tuple[str, ...] = ()
    """Parts of the paths of mounts that have WebSockets."""
    idle: dict[HttpConnection, None] = field(default_factory=dict)
    unknown: dict[Socket, None] = field(default_factory=dict)

    def add_unknown(self, socket: Socket) -> None:
        """Add a WebSocket; the oldest one without an owner makes room."""
        self.unknown[socket] = None
        if len(self.unknown) > MAX_UNKNOWN:
            self.hang_up(next(iter(self.unknown)))

    def hang_up(self, connection: HttpConnection | Socket) -> None:
        """End a connection that makes room for another."""
        self.note("too_many_connections")
        connection.hang_up()


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
        self._shared.idle[self] = None
        self._set_deadline()
        if len(self.connections) > self._shared.maximum:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that is gone."""
        super().connection_lost(exc)
        self._clear()
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
        self._look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to a WebSocket."""
        self._clear()
        super().handle_websocket_upgrade(event)

    def _should_upgrade(self) -> bool:
        """Return True for a WebSocket of responses or a mount; any other request is served as if it had not asked."""
        path = self.scope["path"]
        is_meant = path.endswith(SOCKET_PATH) or any(tree in path for tree in self._shared.trees)
        return self.scope["method"] == "GET" and is_meant and self._get_upgrade() == b"websocket"

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, in the API's shape, and disconnect the request that they are part of."""
        self._refuse(Refusal("malformed", 400, msg))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _look(self) -> None:
        """Start or stop the deadline of the next head."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._clear()
            return
        self._shared.idle.setdefault(self)
        if self._has_begun and self._deadline is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._shared.head_timeout, self._end_late)

    def _clear(self) -> None:
        self._shared.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_late(self) -> None:
        if self._has_begun:
            self._refuse(late("head"))
        else:
            self.transport.close()

    def hang_up(self) -> None:
        """End the connection at once."""
        self._clear()
        self.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest WebSocket without an owner, else the connection that has been idle for longest.

        Refuse this one if there is no other.
        """
        oldest: HttpConnection | Socket = next(chain[Any](self._shared.unknown, self._shared.idle))
        if oldest is not self:
            self._shared.hang_up(oldest)
        else:
            self._refuse(Refusal("too_many_connections", 503, "Too many connections; try again later.", "overloaded"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application, unless an answer has begun, and end the connection."""
        self._shared.note(refusal.event)
        self._clear()
        self._is_refused = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(refusal.body).encode()
            length = (b"content-length", str(len(body)).encode())
            headers = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
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
