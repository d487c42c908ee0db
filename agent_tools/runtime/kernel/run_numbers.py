"""Numbers the runs of a sandbox, to know which of them a checkpoint includes."""

from __future__ import annotations

from collections import deque
from typing import Literal

MAX_CELLS = 10_000  # runs that are remembered individually
MAX_WAKINGS = 10  # consecutive uses of one checkpoint after crashes: its own state may end the kernel

RunKind = Literal["cell", "load", "definition"]
"""The caller's code; variables that are set for the caller, which can be undone like code; what the code is to find."""


class RunNumbers:
    """Run numbers, from 1.

    A cell is a run that changes the caller's variables; other runs define names for the code.
    """

    def __init__(self) -> None:
        self.latest = 0
        self.is_taken_back = False
        """True after a crash that undid the last cells, until the next cell begins: there is nothing to undo."""
        self._at = 0  # the run that left the present variables; 0: a fresh kernel
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
        """Record that the checkpoint after a run continues as the kernel; return how many cells it lacks."""
        self._at, undone = run, 0
        while self._cells and self._cells[-1][0] > run:
            self._cells.pop()
            undone += 1
        return undone

    def wears_out(self, run: int) -> bool:
        """Record that the checkpoint of this run is used after a crash; return whether it was used too often."""
        self._wakings = self._wakings + 1 if run == self._woken else 1
        self._woken = run
        return self._wakings > MAX_WAKINGS

    def is_chosen(self) -> None:
        """Record that the caller chose a checkpoint, which resets the count of its crashes."""
        self._wakings = 0

    def has_definitions(self, run: int) -> bool:
        """Return whether a checkpoint after this run includes all definitions."""
        return self._definition <= run

    @property
    def cells(self) -> int:
        """The number of cells that led to the present variables."""
        return len(self._cells)

    def before_last_cell(self) -> int | None:
        """Return the run after which the last cell began, 0 for none, None if there is no such cell."""
        return self._cells[-1][1] if self._cells else None

    def start_anew(self) -> None:
        """Record that a fresh kernel has no variables."""
        self._cells.clear()
        self.is_taken_back = False
        self._at = self._definition = self._woken = self._wakings = 0
