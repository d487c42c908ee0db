"""Jupyter's messages on one byte stream: what a kernel and its host speak. Standard library only.

    message   u8 channel, u8 number of parts, the size of each part (u32), the parts
    parts     header, parent header, metadata, content: a JSON object each; then buffers

They are the parts of Jupyter's wire protocol without identities and signature: the stream has one reader at each end,
and the guest would hold the key anyway. https://jupyter-client.readthedocs.io/en/stable/messaging.html

All channels share the stream, so messages keep the order in which they were sent: once the reply to a request has
come, everything that was sent before it has come, too.
"""

import struct
from collections.abc import Iterator, Sequence

SHELL, IOPUB, CONTROL, STDIN = range(1, 5)
MIN_PARTS, MAX_PARTS = 4, 64
MAX_REQUEST_BYTES = 64 * 1024 * 1024  # of one message to the kernel
_SIZE = 4  # bytes of a size


class MessageError(ValueError):
    """The other end broke the protocol or a bound of it."""


def pack(channel: int, parts: Sequence[bytes]) -> bytes:
    """Return one message as bytes.

    Raises:
        MessageError: it has too few or too many parts.
    """
    if not MIN_PARTS <= len(parts) <= MAX_PARTS:
        raise MessageError(f"a message of {len(parts)} parts")
    sizes = struct.pack(f">BB{len(parts)}I", channel, len(parts), *map(len, parts))
    return b"".join((sizes, *parts))


class Reader:
    """Messages out of bytes as they come. A message over the limit is refused by its sizes, before it is there."""

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._buffer = bytearray()
        self._sizes: list[int] = []
        self._needed = 2  # bytes of the buffer without which nothing more can be told

    def feed(self, data: bytes) -> "Iterator[tuple[int, list[bytes]]]":
        """Take in bytes; yield the channel and the parts of each message that is complete with them.

        To be read to its end, or the rest of `data` waits for the next call.

        Raises:
            MessageError: an unknown channel, too few or too many parts, or too many bytes.
        """
        self._buffer += data
        while len(self._buffer) >= self._needed:
            if not self._sizes:
                self._read_head()
            else:
                yield self._take()

    def _read_head(self) -> None:
        """Read how many parts there are, and then their sizes."""
        channel, count = self._buffer[0], self._buffer[1]
        if not SHELL <= channel <= STDIN:
            raise MessageError("bytes that are no message")
        if not MIN_PARTS <= count <= MAX_PARTS:
            raise MessageError(f"a message of {count} parts")
        head = 2 + _SIZE * count
        if len(self._buffer) < head:
            self._needed = head
            return
        sizes = list(struct.unpack_from(f">{count}I", self._buffer, 2))
        if (size := sum(sizes)) > self._limit:
            raise MessageError(f"a message of {size:,} bytes, over {self._limit:,} bytes")
        self._sizes, self._needed = sizes, head + size

    def _take(self) -> "tuple[int, list[bytes]]":
        """Take the message off the buffer that is all there."""
        parts, place = [], 2 + _SIZE * len(self._sizes)
        with memoryview(self._buffer) as view:
            for size in self._sizes:
                parts.append(bytes(view[place : place + size]))
                place += size
        channel = self._buffer[0]
        del self._buffer[:place]
        self._sizes, self._needed = [], 2
        return channel, parts
