"""Messages of host calls on a byte stream: what both ends speak. Standard library only.

    u32 length of the head, u32 length of the attachments, head (JSON), attachments one after the other

The head is an object. Its "sizes" are the lengths of the attachments.

    guest -> host   {"op": "call", "id", "name", "args": [..], "kwargs": {..}} | {"op": "cancel", "id"}
    host -> guest   {"op": "result", "id", "value"} | {"op": "error", "id", "kind", "type", "message"}
                    {"op": "hold"} | {"op": "go"}   the run's clock stands still, and goes on
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_MARKS = 1_000_000  # commas, brackets and braces: each may become an object many times its size
_LENGTHS = struct.Struct(">II")


class FrameError(ValueError):
    """The other end broke the protocol or a bound of it."""


class TooLarge(ValueError):
    """A message of one's own is over the limit."""


def pack(head: dict[str, Any], attachments: list[bytes], limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """One message as bytes.

    Raises:
        TooLarge: it is longer than `limit`.
    """
    sizes = [len(part) for part in attachments]
    data = json.dumps({**head, "sizes": sizes}).encode()
    size = len(data) + sum(sizes)
    if size > limit:
        raise TooLarge(f"{size:,} bytes are more than {limit:,}")
    if _marks(data) > MAX_MARKS:
        raise TooLarge(f"it has more than {MAX_MARKS:,} parts; an array, a frame or a text counts as one")
    return b"".join((_LENGTHS.pack(len(data), size - len(data)), data, *attachments))


class Reader:
    """Takes a stream apart. A message is checked for its length before it is held."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], list[bytes], int]]:
        """The messages that are complete now, as head, attachments and size in bytes.

        Raises:
            FrameError: what came is not this protocol, or over the limit.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head_size, body_size = _LENGTHS.unpack_from(self._buffer)
            if head_size + body_size > self._limit + 65536:
                raise FrameError(f"a message of {head_size + body_size:,} bytes")
            end = _LENGTHS.size + head_size + body_size
            if len(self._buffer) < end:
                return
            message = bytes(memoryview(self._buffer)[_LENGTHS.size : end])
            del self._buffer[:end]
            head, attachments = _read(message[:head_size], message[head_size:])
            yield head, attachments, head_size + body_size


def _marks(data: bytes) -> int:
    return sum(map(data.count, (b",", b"[", b"{"))) if len(data) > MAX_MARKS else 0


def _read(data: bytes, body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    if _marks(data) > MAX_MARKS:
        raise FrameError("a message of too many parts")
    try:
        head = json.loads(data)
        sizes = head.pop("sizes")
        if (
            not isinstance(head, dict)
            or not all(type(size) is int and size >= 0 for size in sizes)
            or sum(sizes) != len(body)
        ):
            raise FrameError("a message whose attachments are not as it says")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as exc:
        raise FrameError(f"a malformed message ({type(exc).__name__})") from exc
    attachments, start = [], 0
    for size in sizes:
        attachments.append(body[start : start + size])
        start += size
    return head, attachments
