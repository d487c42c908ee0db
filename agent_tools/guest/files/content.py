"""The frames of a connection of the file service (wire/files.py), with content as a file of unknown length."""

import contextlib
from io import BufferedRWPair, RawIOBase
from typing import Any

from ..wire.files import CONTENT, MAX_PIECE, pack_head
from ..wire.framing import HEADER, measured, pack

CHUNK_BYTES = 256 * 1024


def exactly(stream: BufferedRWPair, size: int) -> bytes:
    """Read exactly `size` bytes of a stream.

    Raises:
        EOFError: it ends before.
    """
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other end hung up")
    return data


class Content(RawIOBase):
    """The content of a request or an answer, as a file, and the answers beside it."""

    def __init__(self, stream: BufferedRWPair) -> None:
        self._stream = stream
        self._left = 0  # bytes of the piece that is being read
        self._is_over = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes of the content; return 0 at its end."""
        if not self._left and not self._is_over:
            header = exactly(self._stream, HEADER.size)
            self._left = measured(header, {CONTENT: MAX_PIECE}.get)[1]
            self._is_over = not self._left
        size = min(self._left, len(buffer))
        if size and self._stream.readinto(memoryview(buffer)[:size]) < size:
            raise EOFError("the other end hung up")
        self._left -= size
        return size

    def write(self, data: Any) -> int:
        """Send the bytes."""
        view = memoryview(data)
        for start in range(0, len(view), MAX_PIECE):
            piece = view[start : start + MAX_PIECE]
            self._stream.write(HEADER.pack(CONTENT, len(piece)))
            self._stream.write(piece)
        return len(view)

    def skip(self) -> None:
        """Read to the end, so that the next message can be read."""
        while self.read(CHUNK_BYTES):
            pass

    def answer(self, head: "dict[str, Any]") -> None:
        """Send an answer."""
        self._stream.write(pack_head(head))

    def end(self) -> None:
        """Mark the end of the content."""
        self._stream.write(pack(CONTENT, b""))

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
