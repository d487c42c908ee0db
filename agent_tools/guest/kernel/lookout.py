"""A short look for the host's answer before sleeping on it.

To be woken takes longer than most answers do, most of all on a core that sleeps as well. Whoever else wants the core
has it meanwhile.
"""

import os
import selectors
import time
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 200e-6  # about what a call of a function takes that does nothing


class Lookout:
    """The moment until which an answer may come at once; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until = 0.0

    def begin(self) -> None:
        """Look from now on: a call was sent."""
        self._until = self._clock() + LOOK_SECONDS

    def goes_on(self) -> bool:
        """Return whether to look once more, instead of sleeping; others have had their turn by then."""
        if self._clock() >= self._until:
            return False
        os.sched_yield()
        return True


answers = Lookout()
"""Of this process's host calls."""


class LookingSelector(selectors.DefaultSelector):
    """The system's own selector, which looks before it sleeps."""

    def __init__(self, lookout: Lookout = answers) -> None:
        super().__init__()
        self._lookout = lookout

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, after `timeout` seconds at the latest."""
        if timeout is None or timeout > LOOK_SECONDS:
            while self._lookout.goes_on():
                if found := super().select(0):
                    return found
        return super().select(timeout)
