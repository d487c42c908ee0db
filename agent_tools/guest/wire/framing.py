"""The frame that all byte streams between host and guest are made of, and flow control by credit.

    frame    u32 kind, u32 length, payload
    parts    a payload of several: u32 number of parts, u32 size of each, the parts

A format is a table of kinds with their limits, and a function that makes a value of a payload: Jupyter messages
(messages.py), host calls (calls.py), commands (commands.py), files (files.py), and channels over one pipe (mux.py). A
frame of another kind, or over its limit, is refused by its first bytes, before the rest is stored. A stream cannot be
resynchronised, so whoever reads it hangs up then.

Three formats are no frames: a word of the lifeline (words.py) is a datagram already, or one frame of mux.py; a word of
a checkpoint (checkpoints/datagrams.py) is one whose sender the operating system reports; and the records of variables
(variables/record_buffer.py) lie in archives, and may have buffers over 4 GiB. Standard library only.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, Union

WINDOW = 1024 * 1024  # bytes of one stream that may be on their way
HEADER = struct.Struct(">II")
MAX_LENGTH = 2**32 - 1  # that a header can say
_SIZE = 4  # bytes of the number of parts, and of the size of each
_MALFORMED = (struct.error, ValueError, TypeError, LookupError, AttributeError, RecursionError)
Buffer = Union[bytes, bytearray, memoryview]
LimitOf = Callable[[int], "int | None"]
"""Returns the most bytes of a payload of this kind; None if there is no such kind."""
T = TypeVar("T")


class FrameError(ValueError):
    """The other end broke the protocol, or a limit of it."""


class TooLarge(ValueError):
    """A message to send is over the limit."""


def pack(kind: int, payload: Buffer) -> bytes:
    """Return a frame."""
    return HEADER.pack(kind, len(payload)) + payload


def pack_parts(kind: int, parts: Sequence[bytes], limit: int = MAX_LENGTH) -> bytes:
    """Return a frame of several parts.

    Raises:
        TooLarge: they are longer than `limit`.
    """
    sizes = [*map(len, parts)]
    length = _SIZE * (1 + len(sizes)) + sum(sizes)
    if length > limit:
        raise TooLarge(f"{length:,} bytes are more than {limit:,}")
    return b"".join((struct.pack(f">{3 + len(sizes)}I", kind, length, len(sizes), *sizes), *parts))


def split(payload: bytes, least: int, most: int) -> list[bytes]:
    """Return the parts of a payload, from `least` to `most`.

    Raises:
        FrameError: it has another number of parts, or is not made of them.
    """
    count = int.from_bytes(payload[:_SIZE], "big")
    if not least <= count <= most:
        raise FrameError(f"a message of {count} parts")
    end = _SIZE * (1 + count)
    sizes = struct.unpack(f">{count}I", payload[_SIZE:end])
    if end + sum(sizes) != len(payload):
        raise FrameError("a message whose parts are not as it says")
    parts = []
    for size in sizes:
        parts.append(payload[end : end + size])
        end += size
    return parts


def first_part(payload: bytes) -> tuple[int, int]:
    """Return the place and the size of the first part of a payload that `split` has not checked yet."""
    return _SIZE * (1 + int.from_bytes(payload[:_SIZE], "big")), int.from_bytes(payload[_SIZE : 2 * _SIZE], "big")


def measured(header: Buffer, limit_of: LimitOf) -> tuple[int, int]:
    """Return the kind and the length of the frame that begins with these bytes.

    Raises:
        FrameError: there is no such kind, or it is over its limit.
    """
    kind, length = HEADER.unpack_from(header)
    most = limit_of(kind)
    if most is None:
        raise FrameError("bytes that are no message")
    if length > most:
        raise FrameError(f"a message of {length:,} bytes, over {most:,} bytes")
    return kind, length


def read_frame(read: Callable[[int], bytes], limit_of: LimitOf) -> tuple[int, bytes]:
    """Return the kind and the payload of the next frame; `read` returns exactly the number of bytes that it is given.

    Errors as for `measured` and `read`.
    """
    kind, length = measured(read(HEADER.size), limit_of)
    return kind, read(length)


class FrameReader(Generic[T]):
    """Cuts a byte stream into frames. `value_of` makes a value of each, or None of one to skip; it may raise."""

    def __init__(self, limit_of: LimitOf, value_of: "Callable[[int, bytes], T | None]") -> None:
        self._limit_of = limit_of
        self._value_of = value_of
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> Iterator[T]:
        """Yield the value of each frame that is complete now. Read it to its end, or the rest waits for the next call.

        Raises:
            FrameError: a frame of an unknown kind, over its limit, or malformed.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, length = measured(self._buffer, self._limit_of)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:
                payload = bytes(view[HEADER.size : end])
            del self._buffer[:end]
            if (value := self._value(kind, payload)) is not None:
                yield value

    def _value(self, kind: int, payload: bytes) -> "T | None":
        try:
            return self._value_of(kind, payload)
        except FrameError:
            raise
        except _MALFORMED as exc:
            raise FrameError(f"a malformed message ({type(exc).__name__})") from exc


class Window:
    """The credit of one stream, both ways: neither side sends more than the other has granted."""

    def __init__(self) -> None:
        self.may_send = WINDOW
        self._received = 0  # bytes that were not granted anew yet
        self._taken = 0  # bytes of those that were taken off

    def grant(self, more: int) -> None:
        """Add bytes that the other side granted."""
        self.may_send = min(WINDOW, self.may_send + more)

    def receive(self, size: int) -> bool:
        """Count received bytes; return False if they are more than was granted."""
        self._received += size
        return self._received <= WINDOW

    def consume(self, size: int) -> int:
        """Count consumed bytes; return how many to grant now, 0 while they are few."""
        self._taken += size
        if self._taken < WINDOW // 4:
            return 0
        granted, self._taken = self._taken, 0
        self._received -= granted
        return granted
