"""Periodic checks of all sandboxes of this process, in a few shared threads.

Theory of operation
    One thread asks every watched object twice a second whether a check is due, which costs about a microsecond each.
    The checks may take long (a folder of many entries, a disk that does not answer), so other threads run them:
    normally one, and one more in each round that finds checks left over from the last round, up to MOST_CHECKERS. These
    threads end when there is nothing to do; the first one ends with the last watched object.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol

from agent_tools.machine.background import start_thread

ROUND_SECONDS = 0.5  # between two rounds
MOST_CHECKERS = 4  # threads for checks, in one process
REMOVE_SECONDS = 60.0  # for a check that is running when its object is removed: a file server may hang
LINGER_SECONDS = 2.0  # seconds that such a thread waits for the next check before it ends

_log = logging.getLogger("agent_tools.rounds")


class Watched(Protocol):
    """An object to check periodically."""

    def is_due(self) -> bool:
        """Return whether a check is due. Called in every round, so it must not wait or compute."""
        ...

    def check(self) -> None:
        """Check the object. Never called twice at the same time."""
        ...


class Rounds:
    """Calls `check` of watched objects when due. Thread-safe, also in finalizers.

    `seconds` is the time between rounds.
    """

    def __init__(self, seconds: float = ROUND_SECONDS) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()  # on an RLock: a finalizer may run in the thread that holds it
        self._watched: dict[int, Watched] = {}  # by id(), and so are the two below
        self._due: dict[int, Watched] = {}  # in the order in which they became due
        self._checking: dict[int, int] = {}  # the thread that checks it
        self._took: dict[int, float] = {}  # seconds that the last check took
        self._checkers = 0
        self._is_going = False

    @property
    def count(self) -> int:
        """The number of watched objects."""
        return len(self._watched)

    @property
    def cost(self) -> float:
        """The seconds that one check of every object takes, from the times of the last checks."""
        with self._changed:
            return sum(self._took.values())

    def add(self, watched: Watched) -> None:
        """Watch an object from now on; if a check is due already, it begins at once."""
        with self._changed:
            self._watched[id(watched)] = watched
            self._ask(watched)
            if not self._is_going:
                self._is_going = start_thread(self._go_round, "agent-tools-rounds") is not None

    def remove(self, watched: Watched) -> None:
        """Stop watching an object, and wait up to REMOVE_SECONDS for a check of it in another thread."""
        with self._changed:
            self._watched.pop(id(watched), None)
            self._due.pop(id(watched), None)
            self._changed.notify_all()
            is_over = lambda: self._checking.get(id(watched)) in (None, threading.get_ident())  # noqa: E731
            self._changed.wait_for(is_over, REMOVE_SECONDS)
            self._took.pop(id(watched), None)

    def _go_round(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._watched, self._seconds):
                    self._is_going = False
                    return
                if self._due:  # left over from the last round
                    self._add_checker()
                for watched in list(self._watched.values()):
                    self._ask(watched)

    def _ask(self, watched: Watched) -> None:
        """Queue a check if one is due and none is running."""
        key = id(watched)
        if key not in self._due and key not in self._checking and watched.is_due():
            self._due[key] = watched
            if self._checkers:
                self._changed.notify_all()
            else:
                self._add_checker()

    def _add_checker(self) -> None:
        if self._checkers < MOST_CHECKERS and start_thread(self._run_checks, "agent-tools-checks"):
            self._checkers += 1

    def _run_checks(self) -> None:
        while (watched := self._next()) is not None:
            started = time.monotonic()
            try:
                watched.check()
            except Exception:  # noqa: BLE001  (the others are checked all the same)
                _log.exception("A periodic check of a sandbox failed.")
            finally:
                with self._changed:
                    del self._checking[id(watched)]
                    if id(watched) in self._watched:
                        self._took[id(watched)] = time.monotonic() - started
                    self._changed.notify_all()

    def _next(self) -> Watched | None:
        """Wait for a check that is due; return None after a long wait, or if nothing is watched."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or not self._watched, LINGER_SECONDS)
            if not self._due:
                self._checkers -= 1
                return None
            key, watched = next(iter(self._due.items()))
            del self._due[key]
            self._checking[key] = threading.get_ident()
            return watched


_by_process: dict[int, Rounds] = {}  # no lock guards it: a child might be forked while another thread holds one


def rounds() -> Rounds:
    """Return the rounds of this process; a forked child has its own."""
    return _by_process.setdefault(os.getpid(), Rounds())
