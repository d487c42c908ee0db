"""The runs of a sandbox by number, so that it can be told which of them a checkpoint knows of."""

from __future__ import annotations

from collections import deque
from typing import Literal

MAX_CELLS = 10_000  # that are remembered one by one
MAX_WAKINGS = 10  # of one checkpoint in a row, after crashes: what it holds may be what ends the kernel

RunKind = Literal["cell", "load", "definition"]
"""The caller's code; variables that are set for the caller, which can be undone like code; what the code is to find."""


class Runs:
    """Numbers from 1. A cell is a run that changes the caller's variables; others define what the code is to find."""

    def __init__(self) -> None:
        self.latest = 0
        self.is_taken_back = False
        """True after a crash that took the last cells back, until another one begins: then there is nothing to undo."""
        self._at = 0  # after which the variables are as they are now; 0: a fresh kernel's
        self._cells: deque[tuple[int, int]] = deque(maxlen=MAX_CELLS)  # and after which each began
        self._definition = 0
        self._woken, self._wakings = 0, 0

    def begin(self, *, is_cell: bool) -> int:
        """Return the number of a run that begins."""
        self.latest += 1
        if is_cell:
            self._cells.append((self.latest, self._at))
            self.is_taken_back = False
        else:
            self._definition = self.latest
        self._at = self.latest
        return self.latest

    def return_to(self, run: int) -> int:
        """Note that a checkpoint goes on that was left after a run; return how many cells it does not know of."""
        self._at, undone = run, 0
        while self._cells and self._cells[-1][0] > run:
            self._cells.pop()
            undone += 1
        return undone

    def wears_out(self, run: int) -> bool:
        """Note that the checkpoint of this run goes on after a crash; return whether it did so too often in a row."""
        self._wakings = self._wakings + 1 if run == self._woken else 1
        self._woken = run
        return self._wakings > MAX_WAKINGS

    def is_chosen(self) -> None:
        """Note that the caller wants a checkpoint to go on: crashes before that say nothing against it."""
        self._wakings = 0

    def has_definitions(self, run: int) -> bool:
        """Return whether a checkpoint that was left after this run knows all definitions."""
        return self._definition <= run

    @property
    def cells(self) -> int:
        """The number of cells that the variables of now have seen."""
        return len(self._cells)

    def before_last_cell(self) -> int | None:
        """Return the run after which the last cell began, 0 for none, None if there is no such cell."""
        return self._cells[-1][1] if self._cells else None

    def start_anew(self) -> None:
        """Note that a fresh kernel knows of nothing."""
        self._cells.clear()
        self.is_taken_back = False
        self._at = self._definition = self._woken = self._wakings = 0
