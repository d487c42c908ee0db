"""Admission: a bounded number of places, with a bounded queue before them.

Places go round by key: each key has a queue of its own, and the key served longest ago is next. When the queues are
full, the longest gives way to a shorter one. So a key that asks for everything gets what the others leave.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

import anyio

from agent_tools.gateway.requests.failures import ApiError, busy


class Admission:
    """Places, handed out in turns, `most` of them to one owner. For one event loop."""

    def __init__(self, places: int, queue: int, patience: float, what: str, most: int | None = None) -> None:
        self._free = places
        self._queue = queue
        self._patience = patience
        self._what = what
        self._most = places if most is None else most
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner, the next one first

    async def enter(self, owner: str) -> None:
        """Take a place, waiting for one if need be.

        Raises:
            ApiError: 429, too many wait already; 503, none became free in time.
        """
        if self._free > 0 and self._held[owner] < self._most:  # then nobody of this owner waits
            self._take(owner)
            return
        self._make_room(owner)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            with anyio.fail_after(self._patience):
                await place
        except BaseException as exc:
            self._give_up(owner, place)
            if isinstance(exc, TimeoutError):
                raise busy(503, f"No {self._what} became free in time; try again later.", self._patience) from exc
            raise

    def leave(self, owner: str) -> None:
        """Give the place back; it goes to the next owner that may have another."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        for other in list(self._waiting):
            if self._held[other] < self._most and self._call_in(other):
                return

    def close(self, why: Exception) -> None:
        """Refuse everyone who waits."""
        for places in self._waiting.values():
            for place in places:
                if not place.done():
                    place.set_exception(why)
        self._waiting.clear()

    @property
    def waiting(self) -> int:
        """The number of those that wait."""
        return sum(map(len, self._waiting.values()))

    def _take(self, owner: str) -> None:
        self._free -= 1
        self._held[owner] += 1

    def _call_in(self, owner: str) -> bool:
        """Give a place to the first of an owner's queue that still waits, and move the owner to the end."""
        places = self._waiting.pop(owner)
        while places:
            place = places.popleft()
            if not place.done():
                self._take(owner)
                place.set_result(None)
                if places:
                    self._waiting[owner] = places
                return True
        return False

    def _make_room(self, owner: str) -> None:
        """Make room for one more in the queue: the last of the longest queue goes, if this owner's will be shorter."""
        if self.waiting < self._queue:
            return
        longest = max(self._waiting, key=lambda each: len(self._waiting[each]), default=owner)
        if len(self._waiting.get(longest, ())) <= len(self._waiting.get(owner, ())) + 1:
            raise self._too_many()
        place = self._waiting[longest].pop()
        if not place.done():
            place.set_exception(self._too_many())

    def _too_many(self) -> ApiError:
        return busy(429, f"Too many requests wait for a {self._what}; try again later.", self._patience)

    def _give_up(self, owner: str, place: asyncio.Future[None]) -> None:
        places = self._waiting.get(owner, deque())
        if place in places:
            places.remove(place)
            if not places:
                del self._waiting[owner]
        elif place.done() and not place.cancelled() and not place.exception():
            self.leave(owner)  # it was handed over at the very moment
