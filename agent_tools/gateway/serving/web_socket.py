"""One client's WebSocket: uvicorn's, with the limits that an HTTP request has.

uvicorn bounds a message (`ws_max_size`) and reads on only when the application has taken the last one. Here a message
must also come in time, and a client may not send frames that cost more than their bytes: empty pieces or pings
without end.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agent_tools.bodies.connections import Connections, CutEvent
from agent_tools.gateway.config import GatewayConfig
from agent_tools.limits import KIB

SLICE = 16 * KIB  # bytes, after which the frames in them are counted
BURST = 1_000  # frames that may come at once
RATE = 50  # further frames each second
BYTES_A_FRAME = KIB  # bytes that buy one frame more
INVALID_TEXT, POLICY_VIOLATION = 1007, 1008  # https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)


class Socket(WebSocketsSansIOProtocol):
    """A WebSocket, made by uvicorn with its own arguments; one below `trees` ends at once when the gateway stops."""

    def __init__(self, limits: GatewayConfig, shared: Connections, trees: tuple[str, ...], **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.logger = self.conn.logger = _log  # the door logs connections
        self.conn.debug = False  # it would log what clients and models say
        self._limits = limits
        self._shared = shared
        self._trees = trees
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
            self.scope["has_owner"] = partial(self._shared.strangers.pop, self, None)  # type: ignore[typeddict-unknown-key]
            self._shared.strangers[self] = None

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
        self._shared.strangers.pop(self, None)
        self.transport.forget()  # type: ignore[attr-defined]

    def hang_up(self) -> None:
        """End the connection at once."""
        self._clear()
        self._shared.strangers.pop(self, None)
        self.transport.abort()

    def shutdown(self) -> None:
        """Leave an open connection to the application, which ends its responses and closes it; one of a mount ends."""
        if self.close_sent or not self.handshake_complete or self.scope["path"].startswith(self._trees):
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

    def _cut(self, event: CutEvent, why: str, code: int = POLICY_VIOLATION) -> None:
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
