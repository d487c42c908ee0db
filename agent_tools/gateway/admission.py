"""Who may start now, who waits, and who is sent away: a bounded number of places with a bounded queue before them."""

from __future__ import annotations

import asyncio
from collections import deque

import anyio

from agent_tools.gateway.failures import busy


class Admission:
    """Places, handed out in order. For one event loop."""

    def __init__(self, places: int, queue: int, patience: float, what: str) -> None:
        self._free = places
        self._queue = queue
        self._patience = patience
        self._what = what
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Take a place, waiting for one if need be.

        Raises:
            ApiError: 429, too many wait already; 503, none became free in time.
        """
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return
        if len(self._waiting) >= self._queue:
            raise busy(429, f"Too many requests wait for {self._what}; try again later.", self._patience)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            with anyio.fail_after(self._patience):
                await place
        except BaseException as exc:
            self._give_up(place)
            if isinstance(exc, TimeoutError):
                raise busy(503, f"There was no {self._what} in time; try again later.", self._patience) from exc
            raise

    def leave(self) -> None:
        """Give the place back."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def close(self, why: Exception) -> None:
        """Send away everyone who waits."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(why)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def _give_up(self, place: asyncio.Future[None]) -> None:
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.done() and not place.cancelled() and not place.exception():
            self.leave()  # it was handed over at the very moment
