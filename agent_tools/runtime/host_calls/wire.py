"""The host's end of a kernel's socket for host calls, read by an event loop; writing never waits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from agent_tools.guest.wire.frames import FrameError, Reader, Screen

SHORT_READ, LONG_READ = 16 * 1024, 256 * 1024  # bytes; room for a long one costs more than most calls
MAX_UNREAD = 64 * 1024 * 1024  # bytes of answers a guest may leave unread before it is hung up on

Take = Callable[[dict[str, Any], list[bytes], int], None]


class CallWire:
    """Owns the socket. `send` and `close` are for any thread; the rest happens in the loop."""

    def __init__(self, connected: socket.socket, max_message_bytes: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._max_message_bytes = max_message_bytes
        self._reader = Reader(max_message_bytes)
        self._read_size = SHORT_READ
        self._lock = threading.Lock()
        self._out = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._take: Take
        self._is_closed = False
        self._is_wanted = True

    def start(self, loop: asyncio.AbstractEventLoop, take: Take, screen: Screen | None = None) -> None:
        """Give every message of the guest to `take` (head, attachments, size in bytes), in this loop.

        `screen` says first whether a call is to be read at all.
        """
        self._loop, self._take = loop, take
        self._reader = Reader(self._max_message_bytes, screen)
        loop.call_soon_threadsafe(self._watch)

    def read_on(self, wanted: bool) -> None:
        """Read on, or read nothing until this is called again: whoever sends then waits. For any thread."""
        if wanted != self._is_wanted:
            self._is_wanted = wanted
            self._call(self._watch)

    def send(self, data: bytes) -> None:
        """Send what can be sent now, and the rest when the guest reads on."""
        with self._lock:
            sent = 0
            if self._is_closed:
                return
            if not self._out:
                with contextlib.suppress(OSError):
                    sent = self._socket.send(data)
            if sent < len(data):
                self._out += data[sent:]
                self._call(self._hang_up if len(self._out) > MAX_UNREAD else self._await_room)

    def close(self) -> None:
        """Hang up, and wait until the loop has let go of the socket."""
        done = threading.Event()

        def let_go() -> None:
            self._hang_up()
            done.set()

        if self._call(let_go):
            done.wait(1.0)
        else:
            self._socket.close()

    def _call(self, work: Callable[[], None]) -> bool:
        """Have the loop do something; False if it is closed."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return self._loop is not None

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._loop and not self._is_closed:
            if self._is_wanted:
                self._loop.add_reader(self._socket.fileno(), self._read)
            else:
                self._loop.remove_reader(self._socket.fileno())

    def _await_room(self) -> None:
        if self._loop and not self._is_closed:
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _read(self) -> None:
        try:
            data = self._socket.recv(self._read_size)
            self._read_size = LONG_READ if len(data) == self._read_size else SHORT_READ
            for head, attachments, size in self._reader.feed(data):
                self._take(head, attachments, size)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            data = b""
        if not data:
            self._hang_up()

    def _flush(self) -> None:
        with self._lock:
            try:
                del self._out[: self._socket.send(self._out)]
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
            if not self._out and self._loop:
                self._loop.remove_writer(self._socket.fileno())

    def _hang_up(self) -> None:
        if self._loop and not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
