"""The host's end of a kernel's socket for host calls: read by an event loop, written without waiting.

Most sessions never make a call. So the process's event loop waits for the first message, and only then the session's
own loop starts, in its own thread, and reads from there on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from agent_tools.guest.wire.calls import CallReader, Screen
from agent_tools.guest.wire.framing import FrameError
from agent_tools.machine.event_loop import READ, EventLoop, join, leave

SHORT_READ, LONG_READ = 16 * 1024, 256 * 1024  # bytes; room for a long one costs more than most calls
MAX_UNREAD = 32 * 1024 * 1024  # bytes of unread answers, above which further ones wait

Take = Callable[[dict[str, Any], list[bytes], int], None]


class CallWire:
    """Owns the socket. Any thread may call `send` and `close`; everything else runs in the session's loop."""

    def __init__(self, connected: socket.socket, max_message_bytes: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._max_message_bytes = max_message_bytes
        self._most_unread = 2 * MAX_UNREAD + max_message_bytes  # of what does not ask for room: errors
        self._reader = CallReader(max_message_bytes)
        self._read_size = SHORT_READ
        self._lock = threading.Lock()
        self._out = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._take: Take
        self._begin: Callable[[], asyncio.AbstractEventLoop]
        self._waiting: EventLoop | None = None  # for the first message
        self._is_closed = False
        self._is_wanted = True

    def start(self, begin: Callable[[], asyncio.AbstractEventLoop], take: Take, screen: Screen | None = None) -> None:
        """Pass each message of the guest to `take` (head, attachments, size in bytes), in the loop that `begin`
        returns.

        `screen` first tells whether a call should be read at all.
        """
        self._begin, self._take = begin, take
        self._reader = CallReader(self._max_message_bytes, screen)
        self._waiting = join(self)
        self._waiting.watch(self._socket.fileno(), READ, self, is_new=True)

    def advance(self, ready: set[int]) -> bool:
        """Let the session's loop read, since the first message or the end has come. In the waiting thread."""
        has_word = self._has_word()
        if has_word:
            self._begin_reading()
        elif has_word is False and self._stop_waiting():
            self.close()
        return False

    def fail(self) -> None:
        """Hang up."""
        self.close()

    def set_reading(self, wanted: bool) -> None:
        """Continue reading, or pause until the next call, which makes the guest wait. Any thread may call it."""
        if wanted != self._is_wanted:
            self._is_wanted = wanted
            self._call(self._watch)

    @property
    def is_crowded(self) -> bool:
        """True while so many answers are unread that further results should wait."""
        return len(self._out) > MAX_UNREAD and not self._is_closed

    def send(self, data: bytes) -> None:
        """Send without waiting, and the rest when the guest reads; close the socket if the guest never reads."""
        with self._lock:
            sent = 0
            if self._is_closed:
                return
            if not self._out:
                with contextlib.suppress(OSError):
                    sent = self._socket.send(data)
            self._out += data[sent:]
            left = len(self._out)
        if left:
            self._begin_reading()
            self._call(self._hang_up if left > self._most_unread else self._await_room)

    def close(self) -> None:
        """Close the socket, and wait until the loop has released it."""
        self._stop_waiting()
        done = threading.Event()

        def let_go() -> None:
            self._hang_up()
            done.set()

        if self._call(let_go):
            done.wait(1.0)
        else:
            with self._lock:
                self._is_closed = True
            self._socket.close()

    def _call(self, work: Callable[[], None]) -> bool:
        """Run a function in the loop; return False if the loop is closed."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return self._loop is not None

    def _stop_waiting(self) -> bool:
        """Stop waiting for the first message; return whether it was still awaited."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return False
        waiting.forget(self._socket.fileno())
        leave(waiting, self)
        return True

    def _begin_reading(self) -> None:
        """Let the session's loop read the socket, unless it does already."""
        if not self._stop_waiting():
            return
        try:
            loop = self._begin()
        except RuntimeError:  # there is no thread to be had
            self.close()
            return
        with self._lock:
            self._loop = loop
            is_closed = self._is_closed
        if not is_closed:
            self._call(self._watch)

    def _has_word(self) -> bool | None:
        """Return True if there are bytes to read, False at the end, None if neither has come.

        Descriptor numbers are reused, so the event may have been for another socket.
        """
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return None
        except OSError:
            return False

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
