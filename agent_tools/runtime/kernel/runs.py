"""The runs of a sandbox by number, so that it can be told which of them a checkpoint knows of."""

from __future__ import annotations

from collections import deque

MAX_CELLS = 10_000  # that are remembered one by one
MAX_WAKINGS = 3  # of one checkpoint in a row: what it holds may be what ends the kernel


class Runs:
    """Numbers from 1. A cell is a run of the caller's; others define what the code is to find."""

    def __init__(self) -> None:
        self.latest = 0
        self._cells: deque[int] = deque(maxlen=MAX_CELLS)
        self._definition = 0
        self._woken, self._wakings = 0, 0

    def begin(self, *, is_cell: bool) -> int:
        """Return the number of a run that begins."""
        self.latest += 1
        if is_cell:
            self._cells.append(self.latest)
        else:
            self._definition = self.latest
        return self.latest

    def return_to(self, run: int) -> int:
        """Note that a checkpoint goes on that was left after a run; return how many cells it does not know of."""
        self._wakings = self._wakings + 1 if run == self._woken else 1
        self._woken = run
        undone = 0
        while self._cells and self._cells[-1] > run:
            self._cells.pop()
            undone += 1
        return undone

    @property
    def is_worn(self) -> bool:
        """True once the latest checkpoint that went on did so too often, and nothing came of it."""
        return self._wakings > MAX_WAKINGS

    def has_definitions(self, run: int) -> bool:
        """Return whether a checkpoint that was left after this run knows all definitions."""
        return self._definition <= run

    def before_last_cell(self) -> int | None:
        """Return the run after which the last cell began, None if there is no such cell."""
        return self._cells[-1] - 1 if self._cells else None

    def start_anew(self) -> None:
        """Note that a fresh kernel knows of nothing."""
        self._cells.clear()
        self._definition = self._woken = self._wakings = 0
