"""The output of a command, bounded: the last bytes of a stream, and the exact count of those before them."""

from __future__ import annotations

SLACK = 256 * 1024  # bytes beyond the limit, so that not every piece moves the whole buffer


class Tail:
    """The last `most` bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._dropped = 0

    @property
    def total(self) -> int:
        """The number of all bytes received."""
        return self._dropped + len(self._kept)

    @property
    def omitted(self) -> int:
        """The number of bytes that are no longer kept."""
        return max(0, self.total - self._most)

    def add(self, data: bytes) -> None:
        """Append the next bytes."""
        self._kept += data
        if len(self._kept) > self._most + SLACK:
            self._dropped += len(self._kept) - self._most
            del self._kept[: len(self._kept) - self._most]

    def since(self, place: int) -> tuple[bytes, int]:
        """Return the kept bytes from a position on, and how many bytes after it are not kept."""
        first = max(place, self.omitted)
        return bytes(self._kept[max(0, first - self._dropped) :]), first - place
