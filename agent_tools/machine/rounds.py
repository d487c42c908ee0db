"""The looks that this process takes at its sandboxes now and then, all of them in a few threads that they share.

Theory of operation
    One thread goes round twice a second and asks everything that is watched whether a look is due, which costs about a
    microsecond each. The looks themselves may take long (a folder of many entries, a disk that does not answer), so
    others take them: one thread as a rule, and one more in each round that finds looks left over from the last one, up
    to MOST_LOOKERS. They end when there is nothing to do, and the first thread with the last that is watched.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

# Work that nobody waits for before the process ends: the removal of sandboxes that have ended, and sweeping.

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


ROUND_SECONDS = 0.5  # between two rounds
MOST_LOOKERS = 4  # threads that look, of one process
LINGER_SECONDS = 2.0  # how long one of them waits for the next look before it ends

_log = logging.getLogger("agent_tools.rounds")


class Watched(Protocol):
    """Something to look at."""

    def is_due(self) -> bool:
        """Return whether a look is due. Asked in every round, so it neither waits nor computes."""
        ...

    def look(self) -> None:
        """Look; one at a time."""
        ...


class Rounds:
    """Thread-safe, also in finalizers. `seconds` lie between two rounds."""

    def __init__(self, seconds: float = ROUND_SECONDS) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()  # on an RLock: a finalizer may run in the very thread that holds it
        self._watched: dict[int, Watched] = {}  # by id(), and so are the two below
        self._due: dict[int, Watched] = {}  # in the order in which they became so
        self._looking: dict[int, int] = {}  # the thread that looks
        self._took: dict[int, float] = {}  # seconds, the last time
        self._lookers = 0
        self._is_going = False

    @property
    def count(self) -> int:
        """The number of those watched."""
        return len(self._watched)

    @property
    def cost(self) -> float:
        """The seconds that one look at each takes, by what the last ones took."""
        with self._changed:
            return sum(self._took.values())

    def add(self, watched: Watched) -> None:
        """Watch something from now on; if a look is due already, somebody takes it at once."""
        with self._changed:
            self._watched[id(watched)] = watched
            self._ask(watched)
            if not self._is_going:
                self._is_going = begun(self._go_round, "agent-tools-rounds") is not None

    def remove(self, watched: Watched) -> None:
        """Watch it no more. A look that another thread is taking is over when this returns."""
        with self._changed:
            self._watched.pop(id(watched), None)
            self._due.pop(id(watched), None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._looking.get(id(watched)) in (None, threading.get_ident()))
            self._took.pop(id(watched), None)

    def _go_round(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._watched, self._seconds):
                    self._is_going = False
                    return
                if self._due:  # left over from the last round
                    self._add_looker()
                for watched in list(self._watched.values()):
                    self._ask(watched)

    def _ask(self, watched: Watched) -> None:
        """Have somebody look if that is due, and not under way."""
        key = id(watched)
        if key not in self._due and key not in self._looking and watched.is_due():
            self._due[key] = watched
            if self._lookers:
                self._changed.notify_all()
            else:
                self._add_looker()

    def _add_looker(self) -> None:
        if self._lookers < MOST_LOOKERS and begun(self._take_looks, "agent-tools-looks"):
            self._lookers += 1

    def _take_looks(self) -> None:
        while (watched := self._next()) is not None:
            started = time.monotonic()
            try:
                watched.look()
            except Exception:  # noqa: BLE001  (the others are looked at all the same)
                _log.exception("A look at a sandbox failed.")
            finally:
                with self._changed:
                    del self._looking[id(watched)]
                    if id(watched) in self._watched:
                        self._took[id(watched)] = time.monotonic() - started
                    self._changed.notify_all()

    def _next(self) -> Watched | None:
        """Wait for a look that is due; None when there has been none for long, or nothing is watched."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or not self._watched, LINGER_SECONDS)
            if not self._due:
                self._lookers -= 1
                return None
            key, watched = next(iter(self._due.items()))
            del self._due[key]
            self._looking[key] = threading.get_ident()
            return watched


_by_process: dict[int, Rounds] = {}  # no lock guards it: a child might be forked while another thread holds one


def rounds() -> Rounds:
    """Return this process's; a forked child has some of its own."""
    return _by_process.setdefault(os.getpid(), Rounds())
