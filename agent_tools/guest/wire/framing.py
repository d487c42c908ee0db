"""Frames cut out of a byte stream, and flow control by credit: the parts that all formats of the wire share.

Standard library only.
"""

from collections.abc import Callable, Iterator
from typing import Union

WINDOW = 1024 * 1024  # bytes of one stream that may be on their way
Buffer = Union[bytes, bytearray]
Measure = Callable[[bytearray], "tuple[int, int] | None"]
"""Returns the sizes of the head and of the whole of the frame that a buffer begins with; None before its head is there.

It raises for a frame over its limit, so that such a frame is never buffered.
"""


class FrameBuffer:
    """Cuts a byte stream into frames."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> "Iterator[tuple[bytes, bytes]]":
        """Yield the head and the payload of each frame that is complete now. Read it to its end.

        Errors as for `measure`.
        """
        self._buffer += data
        while (sizes := self._measure(self._buffer)) and len(self._buffer) >= sizes[1]:
            head, end = sizes
            with memoryview(self._buffer) as view:
                frame = bytes(view[:head]), bytes(view[head:end])
            del self._buffer[:end]
            yield frame


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
