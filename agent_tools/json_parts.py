"""Count the parts of a JSON text before parsing it: each may become an object many times its size."""

from __future__ import annotations

_STEP = 1 << 20  # bytes counted at once, so that the count ends soon after the limit


def has_more_parts(data: bytes | bytearray, most: int, *, beside_texts: bool = False) -> bool:
    """Return True if a JSON text has more than `most` commas and opening brackets, `beside_texts`: outside strings.

    Without it, strings count, too: the count is an upper bound, and takes a tenth of the time.
    """
    if len(data) <= most:
        return False
    found = 0
    for start in range(0, len(data), _STEP):
        found += _marks(data, start, start + _STEP)
        if found > most:
            return not beside_texts or _has_more_beside_texts(data, most)
    return False


def _has_more_beside_texts(data: bytes | bytearray, most: int) -> bool:
    bare, found, place = _without_escapes(data), 0, 0  # each quote begins or ends a string
    for _ in range(2 * most + 2):  # valid JSON has no more strings beside this number of marks
        start = bare.find(b'"', place)
        found += _marks(bare, place, len(bare) if start < 0 else start)
        place = bare.find(b'"', start + 1) + 1
        if found > most or start < 0 or not place:
            return found > most
    return True


def _without_escapes(data: bytes | bytearray) -> bytearray:
    """Return a JSON text without escaped quotes and backslashes, made in steps, so that other threads run between."""
    bare, start = bytearray(), 0
    while start < len(data):
        piece = data[start : start + _STEP]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) == _STEP:
            piece = piece[:-1]  # it begins an escape
        bare += piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        start += len(piece)
    return bare


def _marks(data: bytes | bytearray, start: int, end: int) -> int:
    return data.count(b",", start, end) + data.count(b"[", start, end) + data.count(b"{", start, end)
