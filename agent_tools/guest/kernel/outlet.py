"""The kernel's socket for all that leaves it: whole messages, in one order, from whichever thread.

Theory of operation
    An interrupt raises in the main thread between any two steps of Python, and half a message would break the stream
    for good. So a short message is written in one call of the operating system, which takes all of it or nothing.
    A long one, and one for which the socket has no room, goes into a queue; the watcher (watcher.py), a thread in
    which no interrupt is ever raised, writes the queue, and whoever sent the message waits until that is done. The
    wait may be interrupted: the message stays in the queue and is written all the same.

    Messages that nobody needs at once, such as `busy`, go out together with the next one: of a cell that prints a line
    the host hears once, and not five times.

    The handler of a signal may send in the middle of a call of the code's that holds the lock. Its wait for room
    releases the lock altogether, so that the watcher can go on.

    A forked child shares the socket but not the lock. It hands its messages to the parent's watcher as datagrams.
"""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from ..wire.messages import pack

ONE_PIECE = 16 * 1024  # bytes that a unix socket takes in one piece
MAX_CHILD_MESSAGE = 128 * 1024  # bytes of a message of a forked child; a longer one is left out


class Outlet:
    """Sends messages. `lock` is for those who must send several things in a row."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.lock = threading.RLock()
        self.queue: deque[bytes] = deque()
        self._held: list[bytes] = []
        self.from_children, self._to_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_fork = False
        self.is_closed = False
        """Whether nobody reads any more: what was sent last may be lost."""
        self.rouse: Callable[[], None] = lambda: None
        """Wakes the watcher."""
        self._has_room = threading.Condition(self.lock)
        os.register_at_fork(after_in_child=self._become_fork)

    def send(self, channel: int, parts: list[bytes], *, can_wait: bool = False) -> None:
        """Send a message, or put it into the queue; one that can wait goes with the next one."""
        message = pack(channel, parts)
        if self.is_fork:
            self._send_to_parent(message)
            return
        with self.lock:
            self._held.append(message)
            if not can_wait:
                self.flush()

    def flush(self) -> None:
        """Send what has waited for the next message."""
        with self.lock:
            held, self._held = self._held, []
            message = b"".join(held)
            if not self.queue and len(message) <= ONE_PIECE:
                message = message[self._write(message) :]
            if message:
                self.queue.append(message)
                self.rouse()

    def await_room(self) -> None:
        """Wait until the queue is written. Not in the watcher."""
        if self.queue and not self.is_fork:
            with self._has_room:
                while self.queue:
                    self._has_room.wait(1.0)

    def write_queue(self) -> None:
        """Write what can be written now, in the watcher's thread."""
        while self.queue:
            message = self.queue[0]
            sent = self._write(message)
            if sent < len(message):
                self.queue[0] = message[sent:]
                return
            self.queue.popleft()
        with self._has_room:
            self._has_room.notify_all()

    def pass_on(self) -> None:
        """Send what a forked child has handed over."""
        message = self.from_children.recv(MAX_CHILD_MESSAGE, socket.MSG_DONTWAIT)
        with self.lock:
            self.queue.append(message)

    def _write(self, message: bytes) -> int:
        """Write without waiting; return how much went out. Where nobody reads any more, all has."""
        try:
            return self.socket.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self.is_closed = True
            return len(message)

    def _send_to_parent(self, message: bytes) -> None:
        if len(message) <= MAX_CHILD_MESSAGE:
            with contextlib.suppress(OSError):
                self._to_parent.send(message)

    def renew(self, connected: socket.socket) -> None:
        """Send over another socket, in a fork that is the kernel from now on."""
        self._become_fork()
        for end in (self.socket, self.from_children, self._to_parent):
            end.close()
        self.socket, self.is_fork, self.is_closed = connected, False, False
        self.from_children, self._to_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def _become_fork(self) -> None:
        self.is_fork = True
        self.lock = threading.RLock()
        self._has_room = threading.Condition(self.lock)
        self.queue, self._held = deque(), []
