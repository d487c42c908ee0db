"""Text as it arrives: whole, or in pieces of a size that the input's first byte says."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from tests.fuzz import unfold
from tests.fuzz.oracle import Parts

MOST_PIECES = 8_000


def pieces_of(data: bytes, most: int = unfold.MOST) -> Parts:
    """The text in pieces; 0 leaves it whole."""
    size, whole = data[0] if data else 0, unfold.text(data[1:], most)
    if not size:
        return [whole]
    whole = whole[: size * MOST_PIECES]
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def texts(parts: Parts) -> Iterator[str]:
    """The pieces as text; no piece ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield from map(decoder.decode, parts)
