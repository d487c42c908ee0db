"""Requests to a file server in the guest, and its answers, with limits on size and time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO, TypeVar

from agent_tools.errors import AgentToolsError
from agent_tools.guest.wire.files import CONTENT, HEADS, PIECES, pack_head
from agent_tools.guest.wire.framing import pack, read_frame
from agent_tools.guest.wire.sockets import await_input
from agent_tools.json_parts import has_more_parts

CHUNK_BYTES = 256 * 1024
SILENCE = 1.0  # seconds without a byte after which a server is continued: code may have stopped it
NO_ROOM = "the sandbox has no room for one more process (pids)"  # to serve its files
T = TypeVar("T")
Head = Mapping[str, Any]
"""A request or an answer, beside its content."""
Pieces = Iterable[memoryview]


class FileServiceError(AgentToolsError):
    """An error that the file service reported; it awaits the next request."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class Conversation:
    """One connection. Every wait ends at `deadline` (monotonic seconds); an answer has at most `max_parts` parts.

    `rouse` continues a stopped server; it has no effect on a slow one. Any method may raise OSError: the guest did not
    answer or read in time, or closed the connection.
    """

    def __init__(self, connected: socket.socket, max_parts: int, rouse: Callable[[], object] = lambda: None) -> None:
        self._socket = connected
        self._max_parts = max_parts
        self._rouse = rouse
        self._path = ""  # of the latest request
        self.deadline = 0.0

    def ask(self, request: Head, content: Pieces | None = None) -> dict[str, Any]:
        """Send a request, with its content if it takes any, and return the answer. Errors as for `answer`."""
        self._path = str(request["path"])
        self._send(pack_head(request))
        if content is not None:
            self.give(content)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            FileServiceError: the request failed.
            ValueError: it is malformed.
            OSError: EAGAIN: there is no process that would serve.
        """
        _, data = read_frame(self._receive, HEADS.get)
        if has_more_parts(data, self._max_parts):
            raise ValueError("an answer that would be costly to read")
        try:
            head = json.loads(data)
        except RecursionError as exc:
            raise ValueError("an answer that is nested too deep") from exc
        if not isinstance(head, dict):
            raise ValueError("an answer that is not an object")
        if "errno" in head:
            self._fail(head["errno"])
        return head

    def content(self, most: int) -> Iterator[bytes]:
        """Yield the content of an answer in pieces, at most `most` bytes.

        Raises:
            FileServiceError: EIO: it cannot be read to its end.
            OSError: EFBIG: it is longer.
        """
        left = most
        while True:
            kind, piece = read_frame(self._receive, PIECES.get)
            if kind != CONTENT:
                raise FileServiceError(OSError(errno.EIO, "it could not be read to its end", self._path))
            left -= len(piece)
            if left < 0:
                raise OSError(errno.EFBIG, f"larger than {most:,} bytes", self._path)
            if not piece:
                return
            yield piece

    def give(self, content: Pieces) -> None:
        """Send the content of a request."""
        for piece in itertools.chain(filter(None, content), [memoryview(b"")]):
            self._send(pack(CONTENT, piece))

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

    def _fail(self, number: Any) -> None:
        if type(number) is not int or number not in errno.errorcode:
            raise ValueError("a malformed error")
        if number == errno.EAGAIN:
            raise OSError(number, NO_ROOM, self._path)
        raise FileServiceError(OSError(number, os.strerror(number), self._path))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._in_time(partial(self._socket.recv, min(CHUNK_BYTES, size - len(data))))
            if not piece:
                raise ConnectionError("the sandbox hung up")
            data += piece
        return bytes(data)

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._in_time(partial(self._socket.send, left)) :]

    def _in_time(self, move: Callable[[], T]) -> T:
        while (left := self.deadline - time.monotonic()) > 0:
            self._socket.settimeout(min(left, SILENCE))
            try:
                return move()
            except TimeoutError:
                self._rouse()
        raise TimeoutError("timed out")


def pieces(data: bytes | BinaryIO) -> Iterator[memoryview]:
    """Yield bytes, or a file's content, in pieces."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]
        return
    while piece := data.read(CHUNK_BYTES):
        yield memoryview(piece)
