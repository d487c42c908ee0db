"""Requests to a file server in the guest, and its answers, with limits on size and time."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from agent_tools.guest.wire.sockets import await_input
from agent_tools.json_parts import has_more_parts

CHUNK_BYTES = 256 * 1024
MAX_HEAD_BYTES = 32 * 1024 * 1024
SILENCE = 1.0  # seconds without a byte after which a server is continued: code may have stopped it
T = TypeVar("T")
Head = Mapping[str, Any]
"""A request or an answer, beside its content."""


class Conversation:
    """One connection. Every wait ends at `deadline` (monotonic seconds); an answer has at most `max_parts` parts.

    `rouse` continues a stopped server; it has no effect on a slow one.
    """

    def __init__(self, connected: socket.socket, max_parts: int, rouse: Callable[[], object] = lambda: None) -> None:
        self._socket = connected
        self._max_parts = max_parts
        self._rouse = rouse
        self.deadline = 0.0

    def send_head(self, head: Head) -> None:
        """Send a request."""
        data = json.dumps(head).encode()
        self.send(struct.pack(">I", len(data)) + data)

    def read_head(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            ValueError: it is malformed.
            OSError: it did not come in time, or the guest closed the connection.
        """
        size = struct.unpack(">I", self.receive_all(4))[0]
        if size > MAX_HEAD_BYTES:
            raise ValueError("an answer that is too long")
        data = self.receive_all(size)
        if has_more_parts(data, self._max_parts):
            raise ValueError("an answer that would be costly to read")
        try:
            head = json.loads(data)
        except RecursionError as exc:
            raise ValueError("an answer that is nested too deep") from exc
        if not isinstance(head, dict):
            raise ValueError("an answer that is not an object")
        return head

    def receive_all(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        data = bytearray()
        while len(data) < size:
            data += self.receive(min(CHUNK_BYTES, size - len(data)))
        return bytes(data)

    def receive(self, most: int) -> bytes:
        """Wait for bytes, and return at most `most` of them."""
        data = self._in_time(partial(self._socket.recv, most))
        if not data:
            raise ConnectionError("the sandbox hung up")
        return data

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        left = memoryview(data)
        while left:
            left = left[self._in_time(partial(self._socket.send, left)) :]

    @property
    def is_idle(self) -> bool:
        """True while the connection is open and the guest has sent nothing unasked."""
        return not await_input(self._socket.fileno(), 0)

    def hang_up(self) -> None:
        """Shut the connection down, which wakes threads that wait for it; `close` is still needed."""
        with contextlib.suppress(OSError):  # the guest closed it first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _in_time(self, move: Callable[[], T]) -> T:
        while (left := self.deadline - time.monotonic()) > 0:
            self._socket.settimeout(min(left, SILENCE))
            try:
                return move()
            except TimeoutError:
                self._rouse()
        raise TimeoutError("timed out")
