"""The baton of a gateway's threads: whoever holds it computes, and puts it down to wait.

Theory of operation
    Python runs one thread at a time. Threads that want to run at the same time take that right from each other at every
    wait, at a file, a socket or a lock, and there are dozens of them in what a request computes: ten threads that hold
    each other up so make all ten late. In a queue for whole stretches of work none is later than with its share of
    the time, and most are earlier; and what is urgent, an answer that needs no sandbox, goes first.

    The baton is a courtesy and no lock. Nothing is protected by it, and who has waited for `PATIENCE` goes on without:
    a thread that holds it for long, at a slow disk for instance, keeps nobody for longer than that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 0.25  # seconds


class Baton:
    """One per process. Each thread that computes holds it, or waits for it."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._is_held = False
        self._urgent: deque[threading.Lock] = deque()
        self._others: deque[threading.Lock] = deque()
        self._mine = threading.local()  # `queue`: in which this thread waits, unless it is away; `holds`: the baton

    @contextmanager
    def held(self, *, is_urgent: bool) -> Iterator[None]:
        """Compute: hold the baton, once it is this thread's turn."""
        self._mine.queue = self._urgent if is_urgent else self._others
        self._mine.holds = self._take(self._mine.queue)
        try:
            yield
        finally:
            self._pass_on()
            self._mine.queue = None

    @contextmanager
    def put_down(self) -> Iterator[None]:
        """Wait for something: let others have the baton meanwhile. A thread that computes without does nothing here."""
        queue: deque[threading.Lock] | None = getattr(self._mine, "queue", None)
        if queue is None:
            yield
            return
        self._pass_on()
        self._mine.queue = None
        try:
            yield
        finally:
            self._mine.queue = queue
            self._mine.holds = self._take(queue)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Begin a new stretch of work: let those go first who are urgent, and be the next one after them."""
        if self._urgent and getattr(self._mine, "queue", None) is self._others and self._mine.holds:
            turn = _new_turn()
            with self._lock:
                self._others.appendleft(turn)
            self._pass_on()
            self._mine.holds = self._came(turn, self._others)
        yield

    def _take(self, queue: deque[threading.Lock]) -> bool:
        """Wait in a queue for the baton; return False if it did not come in time."""
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return True
            turn = _new_turn()
            queue.append(turn)
        return self._came(turn, queue)

    def _came(self, turn: threading.Lock, queue: deque[threading.Lock]) -> bool:
        if turn.acquire(timeout=self._patience):
            return True
        with self._lock:
            if turn not in queue:
                return True  # it came at the very moment
            queue.remove(turn)
            return False

    def _pass_on(self) -> None:
        if not self._mine.holds:
            return
        self._mine.holds = False
        with self._lock:
            queue = self._urgent or self._others
            if queue:
                queue.popleft().release()
            else:
                self._is_held = False


def _new_turn() -> threading.Lock:
    """Return a lock that is released when its turn comes."""
    turn = threading.Lock()
    turn.acquire()
    return turn
