"""The client's side of ZeroMQ's wire protocol, on one unix socket, with every message bounded before it is held.

libzmq limits the size of a frame but not of a message, so that a peer which never ends one fills this process's memory;
and its reconnects, queues and threads are of no use here. The kernel's side is libzmq. Format: ZMTP 3.0, NULL
mechanism, https://rfc.zeromq.org/spec/23/
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Literal

from agent_tools.errors import ProtocolViolation

MAX_FRAMES = 64  # of one message; Jupyter's have seven or so
READ_SIZE = 256 * 1024
SEND_SECONDS = 1.0  # how long a peer may leave a request unread
_MORE, _LONG, _COMMAND = 1, 2, 4
_MECHANISM = b"NULL".ljust(20, b"\0")
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _MECHANISM + b"\0" + bytes(31)
_SUBSCRIBE_ALL = b"\x01"


class ZmtpSocket:
    """A DEALER or SUB socket with one peer. Used by one thread at a time.

    Attributes:
        is_closed: the peer hung up; nothing more will come.
        has_more: messages may be waiting in the buffer, because the last `receive` was not read to its end.
    """

    def __init__(self, connected: socket.socket, kind: Literal["DEALER", "SUB"], max_message_bytes: int) -> None:
        self._socket = connected
        self._kind = kind
        self._limit = max_message_bytes
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        self._message_bytes = 0
        self.is_closed = False
        self.has_more = False

    def handshake(self, deadline: float) -> None:
        """Exchange greetings with the peer, and subscribe to everything if this is a SUB socket.

        Raises:
            ProtocolViolation: what answers is not ZeroMQ.
            TimeoutError: it does not answer before the deadline (monotonic seconds).
        """
        self._send(_GREETING)
        greeting = self._read_exactly(len(_GREETING), deadline)
        if greeting[0] != 0xFF or greeting[9] & 1 == 0 or greeting[10] < 3 or greeting[12:32] != _MECHANISM:
            raise ProtocolViolation("a greeting that is not ZeroMQ's")
        kind = self._kind.encode()
        ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self._send(bytes((_COMMAND, len(ready))) + ready)
        if self._kind == "SUB":
            self._send(b"\0\1" + _SUBSCRIBE_ALL)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def send(self, parts: Sequence[bytes]) -> None:
        """Send one message; a peer that is gone or does not read is seen as closed."""
        framed = bytearray()
        for index, part in enumerate(parts):
            more = _MORE if index < len(parts) - 1 else 0
            short = len(part) < 256
            framed += bytes((more, len(part))) if short else bytes((more | _LONG,)) + struct.pack(">Q", len(part))
            framed += part
        self._send(framed)

    def receive(self) -> Iterator[list[bytes]]:
        """The messages that are complete after one read of what is there.

        Raises:
            ProtocolViolation: a message over the limits, or bytes that are not ZMTP.
        """
        self._buffer += self._read()
        self.has_more = True
        while (frame := self._next_frame()) is not None:
            if frame:
                yield frame
        self.has_more = False

    def skip(self) -> None:
        """Drop the messages that are there, but keep the place in the stream."""
        for _ in self.receive():
            pass

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
        self.is_closed = True

    def _next_frame(self) -> list[bytes] | None:
        """Take one frame off the buffer: a whole message if it was its last, [] if not, None if it is not all there."""
        header = self._header()
        if header is None:
            return None
        flags, start, size = header
        if flags & _COMMAND:
            return [] if self._take(start, size) is not None else None
        if self._message_bytes + size > self._limit or len(self._frames) >= MAX_FRAMES:
            raise ProtocolViolation(f"a message over {self._limit:,} bytes or {MAX_FRAMES} parts")
        body = self._take(start, size)
        if body is None:
            return None
        self._frames.append(body)
        self._message_bytes += size
        if flags & _MORE:
            return []
        message, self._frames, self._message_bytes = self._frames, [], 0
        return message

    def _header(self) -> tuple[int, int, int] | None:
        """Flags, where the body starts, and its size."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        flags = buffer[0]
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise ProtocolViolation("bytes that are not ZeroMQ's protocol")
        if not flags & _LONG:
            size, start = buffer[1], 2
        elif len(buffer) < 9:
            return None
        else:
            size, start = int.from_bytes(buffer[1:9], "big"), 9
        if size > self._limit:
            raise ProtocolViolation(f"a message over {self._limit:,} bytes")
        return flags, start, size

    def _take(self, start: int, size: int) -> bytes | None:
        if len(self._buffer) < start + size:
            return None
        body = bytes(memoryview(self._buffer)[start : start + size])
        del self._buffer[: start + size]
        return body

    def _read(self) -> bytes:
        if self._socket.fileno() < 0:
            return b""
        self._socket.setblocking(False)
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.is_closed = self.is_closed or not data
        return data

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                raise ProtocolViolation("nothing, and hung up")
            data += piece
        return data

    def _send(self, data: bytes | bytearray) -> None:
        if self.is_closed:
            return
        self._socket.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):
            self._socket.sendall(data)
            return
        self.is_closed = True
