"""Text that comes in pieces."""

from __future__ import annotations


class GrowingText:
    """A text and its growth: a piece costs time in proportion to itself, however long the text is by now."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def append(self, piece: str) -> None:
        """Add to the end."""
        if piece:
            self._pieces.append(piece)

    def __str__(self) -> str:
        self._pieces = ["".join(self._pieces)] if self._pieces else []
        return self._pieces[0] if self._pieces else ""

    def __bool__(self) -> bool:
        return bool(self._pieces)
