"""Work that nobody waits for before the process ends: the removal of sandboxes that have ended, and sweeping."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

Work = Callable[[], object]
MOST_AT_ONCE = 8  # pieces of work in threads; who brings one more does it

Do = Callable[[Work], None]
"""Does a piece of work, now or later."""


def do_now(work: Work) -> None:
    """Do the work before returning."""
    work()


def begun(work: Work, name: str = "agent-tools-background") -> threading.Thread | None:
    """Begin the work in a thread and return that; None where there is none to be had."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # too many threads, or the interpreter ends
        return None
    return thread


def do_all(works: Iterable[Work]) -> None:
    """Do all of them, MOST_AT_ONCE at a time, and return when the last is done; then raise what one of them raised."""
    waiting, raised = deque(works), list[BaseException]()

    def work_off() -> None:
        while True:
            try:
                work = waiting.popleft()
            except IndexError:
                return
            try:
                work()
            except BaseException as exc:  # noqa: BLE001  (raised below, when the others are done)
                raised.append(exc)

    threads = [begun(work_off) for _ in range(min(MOST_AT_ONCE, len(waiting)) - 1)]
    work_off()
    for thread in filter(None, threads):
        thread.join()
    if raised:
        raise raised[0]


class Background:
    """Does work in threads of its own. Thread-safe, also in finalizers; work that fails says so for itself."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self._threads: list[threading.Thread] = []

    def do(self, work: Work) -> None:
        """Begin the work and return; do it before returning when there are no threads to be had."""
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = begun(work) if len(self._threads) < MOST_AT_ONCE else None
            self._threads += [thread] if thread else []
        if thread is None:
            work()

    def join(self, deadline: float | None = None) -> None:
        """Wait for all that was begun, until the deadline at most (monotonic seconds)."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
