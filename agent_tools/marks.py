"""How many parts a JSON text has, counted before it is parsed: each may become an object many times its size."""

from __future__ import annotations

_MARKS = (b",", b"[", b"{")
_STEP = 1 << 20  # bytes looked at in one go: counting ends soon after there are too many


def has_more_parts(data: bytes, most: int) -> bool:
    """Whether a JSON text has more commas and opening brackets than `most`. Those within strings count, too."""
    if len(data) <= most:
        return False
    found = 0
    for start in range(0, len(data), _STEP):
        found += sum(data.count(mark, start, start + _STEP) for mark in _MARKS)
        if found > most:
            return True
    return False
