"""A queue in which a gateway's threads compute: one at a time, urgent ones first.

Theory of operation
    Python runs one thread at a time. Threads that want to run take the GIL from each other at every wait for a file, a
    socket or a lock, and a request has dozens of such waits: ten threads that interrupt each other are all late. In a
    queue for whole stretches of work no thread is later than with an equal share of the time, and most are earlier; an
    urgent thread, whose answer needs no sandbox, goes first. Beside 30 clients that run code it takes 2.5 to 3 times
    what it takes in quiet, and 7 to 8 times without the queue (benchmarks/gateway.py).

    The queue is not a lock and protects no data. A thread that has waited for `TURN_TIMEOUT` continues without its
    turn, so a thread that computes for long, at a slow disk for instance, delays others by no more than that.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

TURN_TIMEOUT = 0.25  # seconds
URGENT, NEXT, USUAL = range(3)


class ComputeQueue:
    """The queue of a process: one thread has the turn, the others wait for it."""

    def __init__(self, timeout: float = TURN_TIMEOUT) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._is_taken = False
        self._numbers = count()
        self._waiting: list[tuple[int, int, threading.Lock]] = []  # a heap; each lock is released when its turn comes
        self._mine = threading.local()  # `rank`: of this thread while it computes; `has_turn`

    @contextmanager
    def computing(self, *, is_urgent: bool) -> Iterator[None]:
        """Wait for this thread's turn, and compute in the block."""
        self._mine.rank = URGENT if is_urgent else USUAL
        self._mine.has_turn = self._take(self._mine.rank)
        try:
            yield
        finally:
            self._pass_on()
            self._mine.rank = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let others compute while the block waits for something. Do nothing in a thread without a turn."""
        rank: int | None = getattr(self._mine, "rank", None)
        if rank is None:
            yield
            return
        self._pass_on()
        self._mine.rank = None
        try:
            yield
        finally:
            self._mine.rank = rank
            self._mine.has_turn = self._take(rank)

    @contextmanager
    def yielding(self) -> Iterator[None]:
        """Begin a new stretch of work: let urgent threads go first, and be the next one after them."""
        has_turn = getattr(self._mine, "rank", None) == USUAL and self._mine.has_turn
        if has_turn and self._waiting and self._waiting[0][0] == URGENT:
            with self._lock:
                place = self._join(NEXT)
            self._pass_on()
            self._mine.has_turn = self._came(place)
        yield

    def _take(self, rank: int) -> bool:
        """Wait for the turn; return False if it did not come in time."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return True
            place = self._join(rank)
        return self._came(place)

    def _join(self, rank: int) -> tuple[int, int, threading.Lock]:
        """Join the queue. The lock is taken."""
        place = (rank, next(self._numbers), threading.Lock())
        place[2].acquire()
        heapq.heappush(self._waiting, place)
        return place

    def _came(self, place: tuple[int, int, threading.Lock]) -> bool:
        if place[2].acquire(timeout=self._timeout):
            return True
        with self._lock:
            if place not in self._waiting:
                return True  # the turn came just now
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            return False

    def _pass_on(self) -> None:
        if not self._mine.has_turn:
            return
        self._mine.has_turn = False
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].release()
            else:
                self._is_taken = False
