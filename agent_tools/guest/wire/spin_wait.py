"""A short spin before sleeping: the guest spins for a call's answer, the host for the next call.

Waking a thread takes longer than most calls, most of all on a core that sleeps as well. Other threads get the core
meanwhile. If several event loops of a process would spin, none does for a while: they are busy.
Standard library only.
"""

import os
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any

_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # not on every system
SPIN_SECONDS = 200e-6  # about the time of a call that does nothing
CROWD_SECONDS = 0.25  # without spinning, after two loops wanted to spin at once
Clock = Callable[[], float]
"""Returns seconds."""


class SpinWait:
    """The time limit of spinning."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._until = 0.0

    def begin(self) -> None:
        """Start to spin: a call was sent, or answered."""
        self._until = self._clock() + SPIN_SECONDS

    def goes_on(self) -> bool:
        """Return whether to spin once more instead of sleeping, after giving the core to other threads."""
        if self._clock() >= self._until:
            return False
        _give_way()
        return True


class SpinLock:
    """A lock for spinning: one event loop at a time."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._taken = threading.Lock()
        self._free_at = 0.0

    def acquire(self) -> bool:
        """Acquire the lock; return False if another loop has it, or several wanted it recently."""
        if self._clock() < self._free_at:
            return False
        is_mine = self._taken.acquire(blocking=False)
        if not is_mine:
            self._free_at = self._clock() + CROWD_SECONDS
        return is_mine

    def release(self) -> None:
        """Release the lock."""
        self._taken.release()


answers = SpinWait()
"""The spin of this process's host calls."""
_lock = SpinLock()


class SpinningSelector(selectors.DefaultSelector):
    """The system's selector, which spins before it sleeps."""

    def __init__(self, spin: SpinWait = answers, lock: SpinLock = _lock) -> None:
        super().__init__()
        self._spin = spin
        self._lock = lock

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, after `timeout` seconds at the latest."""
        if timeout is None or timeout > SPIN_SECONDS:
            found = self._spun()
            if found:
                return found
        return super().select(timeout)

    def _spun(self) -> Any:
        if not self._spin.goes_on() or not self._lock.acquire():
            return None
        try:
            found = super().select(0)
            while not found and self._spin.goes_on():
                found = super().select(0)
        finally:
            self._lock.release()
        return found
