"""The host's end of the frames that carry a sandbox's connections (guest/proxy.py has the other end).

Every connection is a channel, which its task reads and writes like a stream. A channel is granted as many bytes as were
read from it, so that at most WINDOW bytes of each are buffered here, and an unread channel does not block others. If
the guest sends malformed frames, or more than it was granted, the socket is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from agent_tools.errors import AgentToolsError
from agent_tools.guest.wire.framing import WINDOW, FrameError, Window, pack
from agent_tools.guest.wire.mux import CREDIT, MAX_FRAME, WORDS, credit, frames

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
        if granted := self._window.consume(len(data)):
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

    def receive(self, data: bytes) -> None:
        """Buffer received bytes; b'' means the end.

        Raises:
            FrameError: they are more than was granted.
        """
        if not self._window.receive(len(data)):
            raise FrameError("more than was granted")
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
        except FrameError:
            self.close()

    def feed(self, data: bytes) -> None:
        """Decode bytes of frames.

        Raises:
            FrameError: the frames are malformed, or more than was granted.
        """
        for number, payload in self._frames.feed(data):
            if number & ~CREDIT == WORDS:
                raise FrameError("no frame of a connection")
            self._accept(number, payload)

    def send(self, number: int, payload: bytes) -> None:
        """Send bytes of one channel, now."""
        self.write(pack(number, payload))

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
            channel.grant(int.from_bytes(payload, "big"))
        else:
            channel.receive(payload)
            if not payload:
                self._channels.pop(number, None)

    def _open(self, number: int, payload: bytes) -> None:
        """Begin a channel with its first bytes; bytes for an ended channel are dropped."""
        if not self._latest < number < CREDIT or not payload:
            return
        self._latest = number
        channel = self._channels[number] = ProxyChannel(number, self)
        channel.receive(payload)
        self._serve(channel)
