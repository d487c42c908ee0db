"""A short look for the other end's words before sleeping on them: a call's answer in the guest, the next call here.

To be woken takes longer than most calls do, most of all on a core that sleeps as well. Whoever else wants the core has
it meanwhile. Where several event loops of a process would look, none does for a while: they have work enough.
Standard library only.
"""

import os
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # not every system has it
LOOK_SECONDS = 200e-6  # about what a call of a function takes that does nothing
CROWD_SECONDS = 0.25  # in which nobody looks, after two have wanted to at once
Clock = Callable[[], float]
"""Gives seconds."""


class Lookout:
    """The moment until which something may come at once."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._until = 0.0

    def begin(self) -> None:
        """Look from now on: a call was sent, or answered."""
        self._until = self._clock() + LOOK_SECONDS

    def goes_on(self) -> bool:
        """Return whether to look once more, instead of sleeping; others have had their turn by then."""
        if self._clock() >= self._until:
            return False
        _give_way()
        return True


class Seat:
    """The place of the one that looks."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._taken = threading.Lock()
        self._free_at = 0.0

    def take(self) -> bool:
        """Take it, unless somebody has it, or several have wanted it lately."""
        if self._clock() < self._free_at:
            return False
        is_mine = self._taken.acquire(blocking=False)
        if not is_mine:
            self._free_at = self._clock() + CROWD_SECONDS
        return is_mine

    def leave(self) -> None:
        """Let another one have it."""
        self._taken.release()


answers = Lookout()
"""Of this process's host calls."""
_seat = Seat()


class LookingSelector(selectors.DefaultSelector):
    """The system's own selector, which looks before it sleeps."""

    def __init__(self, lookout: Lookout = answers, seat: Seat = _seat) -> None:
        super().__init__()
        self._lookout = lookout
        self._seat = seat

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, after `timeout` seconds at the latest."""
        if timeout is None or timeout > LOOK_SECONDS:
            found = self._looked()
            if found:
                return found
        return super().select(timeout)

    def _looked(self) -> Any:
        if not self._lookout.goes_on() or not self._seat.take():
            return None
        try:
            found = super().select(0)
            while not found and self._lookout.goes_on():
                found = super().select(0)
        finally:
            self._seat.leave()
        return found
