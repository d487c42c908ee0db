"""Forks that a cell makes: interrupting it ends them, as Ctrl-C in a terminal does, and a time limit with it.

A program that was started lives on, and so does what an earlier cell forked.
"""

import asyncio
import contextlib
import os
import sys
import time

from ..processes import kill_forks

TICKS = os.sysconf("SC_CLK_TCK")  # of a second, in which the kernel tells when a process started
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)


class CellForks:
    """The forks of the cell that runs."""

    def __init__(self) -> None:
        self._first: int | None = None  # ticks from the machine's start to the first fork; None: there is none
        os.register_at_fork(before=self._note)

    def begin(self) -> None:
        """Begin a cell."""
        self._first = None

    def end(self, error: BaseException | None) -> None:
        """End a cell; if it was interrupted, kill what it has forked, and leave no zombies of it."""
        if self._first is None or not isinstance(error, INTERRUPTIONS):
            return
        killed = kill_forks(self._first)
        if "multiprocessing" in sys.modules:  # it has to see for itself that its processes have ended
            sys.modules["multiprocessing"].active_children()
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _note(self) -> None:
        if self._first is None:
            self._first = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
