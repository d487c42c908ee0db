"""Content on a connection, of unknown length: pieces, u32 length and bytes.

An empty piece ends it; one of length FAILED aborts it: the content is incomplete.
"""

import contextlib
import struct
from io import BufferedRWPair, RawIOBase
from typing import Any

CHUNK_BYTES = 256 * 1024
FAILED = 0xFFFFFFFF


class Content(RawIOBase):
    """The content of a request or an answer, as a file."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream
        self._left = 0  # bytes of the piece that is being read
        self._is_over = False
        self.is_sending = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of the content; return 0 at its end."""
        if not self._left and not self._is_over:
            head = self._stream.read(4)
            if len(head) < 4:
                raise EOFError("the other end hung up")
            self._left = struct.unpack(">I", head)[0]
            self._is_over = not self._left
        size = min(self._left, len(buffer))
        if size and self._stream.readinto(memoryview(buffer)[:size]) < size:
            raise EOFError("the other end hung up")
        self._left -= size
        return size

    def write(self, data: Any) -> int:
        """Send the bytes as a piece."""
        self.is_sending = True
        if data:
            self._stream.write(struct.pack(">I", len(data)))
            self._stream.write(data)
        return len(data)

    def skip(self) -> None:
        """Read to the end, so that the next message can be read."""
        while self.read(CHUNK_BYTES):
            pass

    def end(self) -> None:
        """Mark the end of the content."""
        self._stream.write(struct.pack(">I", 0))
        self.is_sending = False

    def begin_again(self) -> None:
        """Read the next content of the same connection."""
        self._left, self._is_over = 0, False

    def push(self) -> None:
        """Send all bytes written so far."""
        self._stream.flush()

    def hang_up(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._stream.close()
