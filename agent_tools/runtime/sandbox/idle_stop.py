"""Stops the processes of an idle sandbox, and continues them at its next use.

PID 1 does it, by the orders `pause` and `resume`, and keeps running, so that a stopped sandbox still ends with the
host. No other process or thread of it runs; its memory stays. An engine's own pause would stop PID 1, too, and pods
have none; Docker's `unpause` takes 20 to 35 ms.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from agent_tools.guest.wire.words import Pause, Resume
from agent_tools.machine.rounds import rounds

MIN_SECONDS = 1.0  # the shortest time without use


class IdleStop:
    """Stops one sandbox after `seconds` without use; 0 for never. Thread-safe.

    `order` sends an order to PID 1; `is_busy` tells whether other work runs in the sandbox.
    """

    def __init__(
        self,
        seconds: float,
        order: Callable[[Pause | Resume], object],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_stopped = False
        self._seconds = seconds
        self._order = order
        self._is_busy = is_busy
        self._clock = clock
        self._uses = 0
        self._used_at = clock()
        self._is_watched = False
        self._is_closed = False
        self._lock = threading.RLock()  # an RLock, since a finalizer may close it in the thread that holds it

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Continue the processes, and do not stop them during the block."""
        if not self._seconds:
            yield
            return
        with self._lock:
            self._uses += 1
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._uses -= 1
                self._used_at = self._clock()
                self._watch()

    def is_due(self) -> bool:
        """Return whether it may be time to stop the processes."""
        return not self.is_stopped and not self._uses and self._clock() >= self._used_at + self._seconds

    def check(self) -> None:
        """Stop the processes if it is time."""
        with self._lock:
            if self._is_busy():
                self._used_at = self._clock()
            if self.is_due() and not self._is_closed:
                self.is_stopped = True
                self._order(Pause())

    def close(self) -> None:
        """Disable the idle stop."""
        with self._lock:
            self._is_closed = True
        if self._is_watched:
            rounds().remove(self)

    def _wake(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            self._order(Resume())

    def _watch(self) -> None:
        if not self._is_watched and not self._is_closed:
            self._is_watched = True
            rounds().add(self)
