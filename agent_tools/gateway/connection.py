"""One client's connection: uvicorn's, with what that leaves open. Heads have a deadline, and connections a number.

The deadline of a body is the door's (door.py), which knows when it is waited for. An answer that is over has none at
all, nor has one under way: streams last as long as they last.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_tools.gateway.requests.failures import Refusal, SecurityEvent, late
from agent_tools.settings import MIB

FAREWELL = 5.0  # seconds that a client has to take something of what is left for it, once its connection is closed
MAX_DROPPED = 16 * MIB  # bytes of what it still sends meanwhile


@dataclass(frozen=True)
class Connections:
    """What all connections of a gateway share. `note` counts; `idle` are those that owe a head, the oldest first."""

    maximum: int
    head_timeout: float
    note: Callable[[SecurityEvent], None]
    idle: dict[Connection, None] = field(default_factory=dict)


class Connection(H11Protocol):
    """Made for each connection by uvicorn, with its own arguments."""

    def __init__(self, shared: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._shared = shared
        self._deadline: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, if there is room."""
        super().connection_made(Farewell(transport, self.loop, self._is_sending))  # type: ignore[arg-type]
        self._shared.idle[self] = None
        self._set_deadline()
        if len(self.connections) > self._shared.maximum:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._clear()
        self.transport.forget()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Take what the client sends, unless nothing is wanted of it any more."""
        if self.transport.is_closing():
            self.transport.drop(len(data))  # type: ignore[attr-defined]
            return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next head."""
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the API's shape. What was asked in the midst of it hears that it is over."""
        self._refuse(Refusal("malformed", 400, msg))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _look(self) -> None:
        """Note whether the client owes a head, and since when."""
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

    def _make_room(self) -> None:
        """Hang up on whoever has asked for nothing for longest; if all have, there is no room for this one."""
        oldest = next(iter(self._shared.idle))
        if oldest is not self:
            self._shared.note("too_many_connections")
            oldest._clear()
            oldest.transport.abort()
        else:
            self._refuse(Refusal("too_many_connections", 503, "Too many connections; try again later.", "overloaded"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application, where nothing was answered yet, and end the connection."""
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
        """Whether the client may be in the midst of something."""
        return self._is_refused or self.conn.their_state is h11.SEND_BODY or self._has_begun


class Farewell:
    """A transport that is closed so that the client can read its last answer, and that is gone soon whatever it does.

    Closing a socket on which something is unread makes the kernel reset it, and the answer may be lost. So the client
    is told that no more comes, and what it still sends is dropped. One that takes nothing either is hung up on.
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
        """Whether it was closed, from this side or the other."""
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is left to be sent, and hang up."""
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
        """Take note of bytes that nobody wants."""
        self._dropped += size
        if self._dropped > MAX_DROPPED:
            self._transport.abort()

    def forget(self) -> None:
        """It is gone: wait no longer."""
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
