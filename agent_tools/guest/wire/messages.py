"""Jupyter messages on one byte stream between a kernel and the host. Standard library only.

    message   u8 channel, u8 number of parts, the size of each part (u32), the parts
    parts     header, parent header, metadata, content: a JSON object each; then buffers

They are the parts of Jupyter's wire protocol without identities and signature: the stream has one reader at each end,
and the guest would hold the key anyway. https://jupyter-client.readthedocs.io/en/stable/messaging.html

All channels share the stream, so messages keep the order in which they were sent: once the reply to a request has
come, everything that was sent before it has come, too.
"""

import struct
from collections.abc import Iterator, Sequence

from .framing import FrameBuffer

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


class MessageReader:
    """Cuts a byte stream into messages; one over the limit is an error as soon as its sizes are known."""

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._frames = FrameBuffer(self._measure)

    def feed(self, data: bytes) -> "Iterator[tuple[int, list[bytes]]]":
        """Yield the channel and the parts of each message that is complete now.

        Read it to its end, or the rest of `data` waits for the next call.

        Raises:
            MessageError: an unknown channel, too few or too many parts, or too many bytes.
        """
        for head, payload in self._frames.feed(data):
            parts, place = [], 0
            for size in _sizes(head):
                parts.append(payload[place : place + size])
                place += size
            yield head[0], parts

    def _measure(self, buffer: bytearray) -> "tuple[int, int] | None":
        if len(buffer) < 2:
            return None
        channel, count = buffer[0], buffer[1]
        if not SHELL <= channel <= STDIN:
            raise MessageError("bytes that are no message")
        if not MIN_PARTS <= count <= MAX_PARTS:
            raise MessageError(f"a message of {count} parts")
        head = 2 + _SIZE * count
        if len(buffer) < head:
            return None
        if (size := sum(_sizes(buffer))) > self._limit:
            raise MessageError(f"a message of {size:,} bytes, over {self._limit:,} bytes")
        return head, head + size


def _sizes(head: "bytes | bytearray") -> tuple[int, ...]:
    return struct.unpack_from(f">{head[1]}I", head, 2)
