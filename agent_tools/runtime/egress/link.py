"""The host's end of the frames that carry a sandbox's connections (guest/proxy.py has the other end).

Every connection is a channel, which its task reads and writes like a stream. A channel is granted as many bytes as were
read from it, so that at most WINDOW bytes of each are buffered here, and an unread channel does not block others. If
the guest sends malformed frames, or more than it was granted, the socket is closed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from agent_tools.errors import AgentToolsError
from agent_tools.guest.wire.mux import (
    CREDIT,
    HEADER,
    MAX_FRAME,
    WINDOW,
    WORDS,
    MuxError,
    Window,
    credit,
    cut,
    frames,
    read_credit,
)
from agent_tools.limits import EgressLimits
from agent_tools.results.execution import ConnectionStatus, NetworkConnection

# The record of a sandbox's connections, for executions and for the log: names and numbers only.

log = logging.getLogger("agent_tools.egress")


@dataclass(eq=False)
class Entry:
    """One open connection. `host` is '' until a name was read; sizes are bytes."""

    host: str = ""
    port: int = 0
    received: int = 0
    sent: int = 0
    status: ConnectionStatus = "open"
    reason: str = ""
    started: float = field(default_factory=time.monotonic)
    reported: tuple[int, int] | None = None  # sizes that an earlier execution reported

    def refuse(self, refusal: EgressRefused) -> None:
        """Record why it was not made, or was cut."""
        self.status = "failed" if isinstance(refusal, NotReached) or self.received or self.sent else "refused"
        self.reason = refusal.reason

    def since(self) -> NetworkConnection | None:
        """Return the changes since the last report; None if there are none."""
        before = self.reported or (0, 0)
        received, sent = self.received - before[0], self.sent - before[1]
        if self.reported and not received and not sent and not self.reason:
            return None
        self.reported = (self.received, self.sent)
        duration = time.monotonic() - self.started
        return NetworkConnection(self.host, self.port, self.status, self.reason, received, sent, duration)


class Journal:
    """The connections of one sandbox. Entries are begun and ended in the loop, and taken by any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: list[Entry] = []
        self._over: list[NetworkConnection] = []
        self._left_out = 0
        self.opened = 0  # since the last taking

    def begin(self) -> Entry:
        """Begin the record of a new connection."""
        entry = Entry()
        with self._lock:
            self.opened += 1
            self._open.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """End the record of a connection; the next `take` returns it."""
        entry.status = "closed" if entry.status == "open" else entry.status
        with self._lock:
            self._open.remove(entry)
            found = entry.since()
            if found and len(self._over) < self._most:
                self._over.append(found)
            elif found:
                self._left_out += 1
        log.info(
            "%s:%d %s%s: %d bytes in, %d bytes out",
            *(entry.host or "?", entry.port, entry.status, f" ({entry.reason})" if entry.reason else ""),
            *(entry.received, entry.sent),
        )

    def count_unread(self) -> None:
        """Count a connection that was closed before any byte of it was read."""
        with self._lock:
            self.opened += 1
            self._left_out += 1

    def take(self) -> tuple[tuple[NetworkConnection, ...], int]:
        """Return the connections since the last call, in the order in which they ended, and how many were left out."""
        with self._lock:
            going_on = [found for entry in self._open[: self._most] if (found := entry.since())]
            taken, self._over = (*self._over, *going_on), []
            left_out, self._left_out, self.opened = self._left_out, 0, 0
        return taken, left_out


# Errors of connections: why one is not made or was cut, as text for the code and for the record.


class EgressRefused(AgentToolsError):
    """A connection is not made, or is cut.

    Attributes:
        status: the HTTP status of the answer.
        reason: a few fixed words, for the record.
        explanation: one sentence for the author of the code; it names nothing that the code did not name.
    """

    def __init__(self, status: int, reason: str, explanation: str) -> None:
        super().__init__(explanation)
        self.status = status
        self.reason = reason
        self.explanation = explanation


class NotReached(EgressRefused):
    """A listed host could not be reached, or closed the connection."""

    def __init__(self, reason: str, explanation: str) -> None:
        super().__init__(502, reason, explanation)


MAX_UNREAD = 16 * WINDOW  # bytes waiting for a guest at which its socket is closed: honest guests leave far fewer

Serve = Callable[["ProxyChannel"], None]


class ClientHungUp(AgentToolsError, ConnectionResetError):
    """The code ended its connection."""


class ProxyChannel:
    """One connection of the code. Reading and writing is for one task each."""

    def __init__(self, number: int, link: Link) -> None:
        self._number = number
        self._link = link
        self._pending = bytearray()
        self._window = Window()
        self._is_ended = False  # the guest sends no more, and reads no more
        self._changed = asyncio.Event()

    async def read(self) -> bytes:
        """Wait for bytes and return them; b'' at the end."""
        while not self._pending and not self._is_ended:
            await self._change()
        data = bytes(memoryview(self._pending)[:MAX_FRAME])
        del self._pending[: len(data)]
        if granted := self._window.take(len(data)):
            self._link.write(credit(self._number, granted))
        return data

    async def write(self, data: bytes) -> None:
        """Send all the bytes, as fast as the guest reads them.

        Raises:
            ClientHungUp: the guest has ended the channel.
        """
        rest = memoryview(data)
        while rest:
            while not self._window.may_send and not self._is_ended:
                await self._change()
            if self._is_ended:
                raise ClientHungUp("the code has hung up")
            size = min(len(rest), self._window.may_send, MAX_FRAME)
            self._window.may_send -= size
            self._link.send(self._number, bytes(rest[:size]))
            rest = rest[size:]
            await self._link.has_room.wait()

    def say(self, data: bytes) -> None:
        """Send a short last message, without waiting."""
        self._link.send(self._number, data)

    def close(self) -> None:
        """End the channel. Ending it again does nothing."""
        self._link.forget(self._number)

    def take(self, data: bytes) -> None:
        """Buffer received bytes; b'' means the end.

        Raises:
            MuxError: they are more than was granted.
        """
        if not self._window.receive(len(data)):
            raise MuxError("more than was granted")
        self._pending += data
        self._is_ended = self._is_ended or not data
        self._changed.set()

    def grant(self, more: int) -> None:
        """Allow this many more bytes to be sent."""
        self._window.grant(more)
        self._changed.set()

    def end(self) -> None:
        """Record that the guest is gone."""
        self._is_ended = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Link(asyncio.Protocol):
    """The channels of one sandbox's socket. `serve` is called with each new one and must not wait."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._transport: asyncio.Transport | None = None
        self._frames = frames()
        self._channels: dict[int, ProxyChannel] = {}
        self._latest = 0
        self.has_room = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True until either side hangs up."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self.has_room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """End every channel."""
        self.has_room.set()
        self._transport = None
        for channel in self._channels.values():
            channel.end()
        self._channels.clear()

    def pause_writing(self) -> None:
        """Make writers wait: the guest does not read."""
        self.has_room.clear()

    def resume_writing(self) -> None:
        """Let writers continue."""
        self.has_room.set()

    def data_received(self, data: bytes) -> None:
        """Decode bytes of the guest; close the socket if frames are malformed."""
        try:
            self.feed(data)
        except MuxError:
            self.close()

    def feed(self, data: bytes) -> None:
        """Decode bytes of frames.

        Raises:
            MuxError: the frames are malformed, or more than was granted.
        """
        for number, payload in cut(self._frames, data):
            if number & ~CREDIT == WORDS:
                raise MuxError("no frame of a connection")
            self._accept(number, payload)

    def send(self, number: int, payload: bytes) -> None:
        """Send bytes of one channel, now."""
        self.write(HEADER.pack(number, len(payload)) + payload)

    def write(self, frame: bytes) -> None:
        """Send one frame, now."""
        if self._transport and not self._transport.is_closing():
            self._transport.write(frame)
            if self._transport.get_write_buffer_size() > MAX_UNREAD:
                self._transport.abort()

    def forget(self, number: int) -> None:
        """End a channel; later bytes for it are dropped."""
        if self._channels.pop(number, None):
            self.send(number, b"")

    def close(self) -> None:
        """Hang up."""
        if self._transport:
            self._transport.abort()

    def _accept(self, number: int, payload: bytes) -> None:
        channel = self._channels.get(number & ~CREDIT)
        if channel is None:
            self._open(number, payload)
        elif number & CREDIT:
            channel.grant(read_credit(payload))
        else:
            channel.take(payload)
            if not payload:
                self._channels.pop(number, None)

    def _open(self, number: int, payload: bytes) -> None:
        """Begin a channel with its first bytes; bytes for an ended channel are dropped."""
        if not self._latest < number < CREDIT or not payload:
            return
        self._latest = number
        channel = self._channels[number] = ProxyChannel(number, self)
        channel.take(payload)
        self._serve(channel)


# The limits of one connection: bytes each way, duration, and idle time.


class Meter:
    """Counts the bytes of a connection, in its record."""

    def __init__(self, entry: Entry, limits: EgressLimits) -> None:
        self.entry = entry
        self._limits = limits
        self._total_in = self._total_out = 0
        self._latest = time.monotonic()

    def send(self, size: int) -> None:
        """Count bytes that are about to be sent.

        Raises:
            EgressRefused: they are too many.
        """
        self._latest = time.monotonic()
        self._total_out += size
        if self._total_out > self._limits.max_sent:
            raise _cut(f"more than {self._limits.max_sent:,} bytes out (max_sent)")
        self.entry.sent += size

    def receive(self, size: int) -> None:
        """Count received bytes.

        Raises:
            EgressRefused: they are too many.
        """
        self._latest = time.monotonic()
        self._total_in += size
        if self._total_in > self._limits.max_received:
            raise _cut(f"more than {self._limits.max_received:,} bytes in (max_received)")
        self.entry.received += size

    async def watch(self) -> None:
        """Wait until the connection has lasted or been idle for too long, then raise EgressRefused."""
        end = time.monotonic() + self._limits.max_seconds
        while True:
            now, idle = time.monotonic(), self._latest + self._limits.idle_timeout
            if now >= end:
                raise _cut(f"longer than {self._limits.max_seconds:g} s (max_seconds)")
            if now >= idle:
                raise _cut(f"{self._limits.idle_timeout:g} s without a byte (idle_timeout)")
            await asyncio.sleep(min(end, idle) - now)


def _cut(why: str) -> EgressRefused:
    return EgressRefused(504, why, f"The connection was cut: {why}.")
