"""Background work, such as the removal of ended sandboxes and sweeps; the process waits for it only at its end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Work = Callable[[], object]
MOST_AT_ONCE = 8  # jobs in threads; the caller itself runs any further one

Do = Callable[[Work], None]
"""Runs a job, now or later."""


def do_now(work: Work) -> None:
    """Run the job before returning."""
    work()


def start_thread(work: Work, name: str = "agent-tools-background") -> threading.Thread | None:
    """Start a job in a thread and return the thread; None if no thread can be started."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # too many threads, or the interpreter ends
        return None
    return thread


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Start work whose outcome is needed in a thread; do it before returning if no thread can be started."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as exc:  # noqa: BLE001  (raised in the thread that asks for the outcome)
            outcome.set_exception(exc)

    if start_thread(run, name) is None:
        run()
    return outcome


def do_all(works: Iterable[Work]) -> None:
    """Run all jobs, MOST_AT_ONCE at a time, and wait for them; then raise the exception of one of them, if any."""
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

    threads = [start_thread(work_off) for _ in range(min(MOST_AT_ONCE, len(waiting)) - 1)]
    work_off()
    for thread in filter(None, threads):
        thread.join()
    if raised:
        raise raised[0]


class Background:
    """Runs jobs in its own threads. Thread-safe, also in finalizers; jobs report their own failures."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self._threads: list[threading.Thread] = []

    def do(self, work: Work) -> None:
        """Start a job and return; run it before returning if no thread can be started."""
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = start_thread(work) if len(self._threads) < MOST_AT_ONCE else None
            self._threads += [thread] if thread else []
        if thread is None:
            work()

    def join(self, deadline: float | None = None) -> None:
        """Wait for all started jobs, until the deadline at most (monotonic seconds)."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
