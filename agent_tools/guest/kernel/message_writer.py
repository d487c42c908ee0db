"""Writes the kernel's messages to its socket: whole, in one order, from any thread; and the thread beside the code.

Theory of operation
    An interrupt raises in the main thread between any two steps of Python, and half a message would break the stream
    for good. So a short message is written in one call of the operating system, which takes all of it or nothing.
    A long message, and one for which the socket has no room, goes into a queue. The watcher, a thread in which no
    interrupt is ever raised, writes the queue, and the sender waits until that is done. An interrupt may end the wait:
    the message stays in the queue and is written all the same.

    Messages that can wait, such as `busy`, go out together with the next one: the host reads once for a cell that
    prints a line, and not five times.

    A signal handler may send while the code holds the lock. Its wait for room releases the lock altogether, so that
    the watcher can go on. A forked child shares the socket but not the lock: it sends its messages to the parent's
    watcher as datagrams.

    The watcher also reads what others write to the descriptors of stdout and stderr, and sends printed text that has
    waited for TICK, so that long-running code is seen at work. It sleeps while nothing is printed; after text it stays
    awake for LINGER, because waking a thread costs more than most cells.
"""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from ..wire.framing import pack_parts
from .interrupts import shield

ONE_PIECE = 16 * 1024  # bytes that a unix socket takes in one piece
MOST_FROM_CHILDREN = 300  # messages, more than a socket has room for
MAX_CHILD_MESSAGE = 128 * 1024  # bytes of a message of a forked child; a longer one is left out


class MessageWriter:
    """Sends messages. Hold `lock` to send several in a row."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.lock = threading.RLock()
        self.queue: deque[bytes] = deque()
        self._delayed: list[bytes] = []
        self.from_children, self._to_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_fork = False
        self.is_closed = False
        """Whether the host has hung up: the last messages may be lost."""
        self.rouse: Callable[[], None] = lambda: None
        """Wakes the watcher."""
        self._has_room = threading.Condition(self.lock)
        os.register_at_fork(after_in_child=self._become_fork)

    def send(self, channel: int, parts: list[bytes], *, can_wait: bool = False) -> None:
        """Send a message or queue it; a message that can wait goes out with the next one."""
        message = pack_parts(channel, parts)
        if self.is_fork:
            self._send_to_parent(message)
            return
        with self.lock:
            self._delayed.append(message)
            if not can_wait:
                self.flush()

    def flush(self) -> None:
        """Send the messages that could wait."""
        with shield, self.lock:
            delayed, self._delayed = self._delayed, []
            message = b"".join(delayed)
            if not self.queue and len(message) <= ONE_PIECE:
                message = message[self._write(message) :]
            if message:
                self.queue.append(message)
                self.rouse()

    def await_room(self) -> None:
        """Wait until the queue is written. Not for the watcher."""
        if self.queue and not self.is_fork:
            with self._has_room:
                while self.queue:
                    self._has_room.wait(1.0)

    def write_queue(self) -> None:
        """Write as much as the socket takes now, in the watcher's thread."""
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
        """Queue the messages that forked children have sent: as many as the socket holds, since more may come."""
        with shield, self.lock, contextlib.suppress(BlockingIOError):
            for _ in range(0 if self.is_fork else MOST_FROM_CHILDREN):
                self.queue.append(self.from_children.recv(MAX_CHILD_MESSAGE, socket.MSG_DONTWAIT))
                self.rouse()

    def _write(self, message: bytes) -> int:
        """Write without waiting; return how many bytes went out: all, if the host has hung up."""
        try:
            return self.socket.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self.is_closed = True
            return len(message)

    def _send_to_parent(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            if len(message) <= MAX_CHILD_MESSAGE:
                self._to_parent.send(message)
            else:
                os.write(2, b"[an output of %d bytes of a forked process was left out]\n" % len(message))

    def renew(self, connected: socket.socket) -> None:
        """Send over another socket, in a fork that becomes the kernel."""
        self._become_fork()
        for end in (self.socket, self.from_children, self._to_parent):
            end.close()
        self.socket, self.is_fork, self.is_closed = connected, False, False
        self.from_children, self._to_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def _become_fork(self) -> None:
        self.is_fork = True
        self.lock = threading.RLock()
        self._has_room = threading.Condition(self.lock)
        self.queue, self._delayed = deque(), []
