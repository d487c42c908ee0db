"""The count of a JSON text's parts before it is parsed: each may become an object many times its size."""

from __future__ import annotations

MAX_BODY_PARTS = 500_000  # of a request; each costs up to 100 bytes once parsed

_MARKS = (b",", b"[", b"{")
_STEP = 1 << 20  # bytes counted at once: the count ends soon after there are too many


def has_more_parts(data: bytes | bytearray, most: int) -> bool:
    """Return True if a JSON text has more than `most` commas and opening brackets, those within strings included."""
    if len(data) <= most:
        return False
    found = 0
    for start in range(0, len(data), _STEP):
        found += sum(data.count(mark, start, start + _STEP) for mark in _MARKS)
        if found > most:
            return True
    return False
