"""Stops the processes of a sandbox that nobody uses, and lets them go on at its next use.

PID 1 does it, by the words `pause` and `resume`, and goes on itself: so a sandbox that is stopped still ends with the
host. Nothing of a stopped sandbox runs, threads that code left behind included; what it holds in memory stays.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from agent_tools.guest.wire.words import Pause, Resume

MIN_SECONDS = 1.0  # the shortest time without use, and between two looks


class IdleStop:
    """The stop of one sandbox after `seconds` without use; 0 for never. Any thread may use it.

    `order` sends a word to PID 1; `is_busy` says that something goes on which holds no use.
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
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Around a use: the processes go on, and are not stopped meanwhile."""
        if not self._seconds:
            yield
            return
        with self._changed:
            self._uses += 1
            self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._uses -= 1
                self._used_at = self._clock()
                self._begin()

    def look(self) -> float:
        """Stop the processes if it is time; return the seconds until the next look."""
        with self._changed:
            if self._uses or self._is_busy():
                self._used_at = self._clock()
            left = self._used_at + self._seconds - self._clock()
            if left > 0 or self.is_stopped:
                return max(left, MIN_SECONDS)
            self.is_stopped = True
            self._order(Pause())
            return self._seconds

    def close(self) -> None:
        """Stop nothing any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            self._order(Resume())

    def _begin(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._watch, name="agent-tools-idle", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while True:
            seconds = self.look()
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closed, min(seconds, threading.TIMEOUT_MAX)):
                    return
