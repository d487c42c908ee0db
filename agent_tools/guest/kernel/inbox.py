"""Messages of the host to the kernel: requests in turn, and the answer that code waits for in the middle of one."""

import socket
from collections import deque
from collections.abc import Iterator

from ..wire.messages import MAX_REQUEST_BYTES, SHELL, STDIN, Reader
from ..wire.waiting import await_input
from . import interrupts

READ_SIZE = 64 * 1024


class Inbox:
    """The messages of one connection. An answer that nobody waits for, such as one that comes too late, is dropped."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = Reader(MAX_REQUEST_BYTES)
        self._waiting: deque[list[bytes]] = deque()

    def requests(self, data: bytes) -> Iterator[list[bytes]]:
        """Take in bytes; yield the parts of each request, those first that came while code waited for an answer."""
        self._take(data)
        while self._waiting:
            yield self._waiting.popleft()

    def drop_answers(self) -> None:
        """Drop the answers that have come so far, to code that was interrupted while it waited for one."""
        while await_input(self._socket.fileno(), 0):
            with interrupts.shield:
                data = self._socket.recv(READ_SIZE)
                self._take(data)
            if not data:
                return

    def await_answer(self) -> list[bytes]:
        """Wait for the next answer, which an interrupt may end; requests that come meanwhile have their turn later.

        Raises:
            EOFError: the host hung up.
        """
        while True:
            await_input(self._socket.fileno(), None)
            with interrupts.shield:  # bytes that were read must not be lost
                data = self._socket.recv(READ_SIZE)
                answers = self._take(data)
            if answers:
                return answers[0]
            if not data:
                raise EOFError("The client has gone.")

    def _take(self, data: bytes) -> list[list[bytes]]:
        """Put requests in the queue; return answers."""
        answers = []
        for channel, parts in self._reader.feed(data):
            if channel == SHELL:
                self._waiting.append(parts)
            elif channel == STDIN:
                answers.append(parts)
        return answers
