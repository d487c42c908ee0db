"""The sandboxes that this process has reserved, by host and kind; each is taken by one session."""

from __future__ import annotations

import contextlib
import heapq
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from agent_tools.errors import EngineError, HostFull
from agent_tools.fleet.crossing import RemoteSpec
from agent_tools.fleet.limits import ASK_SECONDS, CLOSE_SECONDS
from agent_tools.fleet.links import HostGone, HostLink
from agent_tools.fleet.placement import Placement
from agent_tools.machine.background import do_all


@dataclass
class Reservation:
    """Some of one kind on one host, under an id there. `count` were not taken yet, when they were last heard of."""

    kind: RemoteSpec
    link: HostLink
    id: str
    count: int = 0
    is_lost: bool = False

    @property
    def left(self) -> int:
        """Those that can be taken still."""
        return 0 if self.is_lost else self.count

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host and the id there, while there is something left."""
        return (self.link, self.id) if self.left else None

    def note_lost(self, id_: str, why: str) -> None:
        """The host does not have it any more."""
        self.is_lost = True


class Reserved:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reservations: list[Reservation] = []
        self._takes: Counter[str] = Counter()

    def add(self, kind: RemoteSpec, count: int, placement: Placement) -> int:
        """Reserve so many, each on the host that is emptiest then; return how many there was room for."""
        wanted: Counter[str] = Counter()
        loads = placement.loads()
        emptiest = [
            (load.share, name, load.taken, load.slots) for name, load in loads.items() if load.taken < load.slots
        ]
        heapq.heapify(emptiest)
        while emptiest and wanted.total() < count:
            _, name, taken, slots = heapq.heappop(emptiest)
            wanted[name] += 1
            if taken + 1 < slots:
                heapq.heappush(emptiest, ((taken + 1) / slots, name, taken + 1, slots))
        return sum(self._add(kind, link, wanted[link.name], placement) for link in placement.links())

    def open(self, id_: str, spec: RemoteSpec) -> HostLink | None:
        """Have a session take one of its kind; return its host, None if there is none left."""
        while reservation := self._one(spec.kind):
            with _letting_go(reservation):
                reservation.link.call("open", id_, spec, reservation.id)
                return reservation.link
        return None

    def left(self, kind: RemoteSpec | None = None) -> int:
        """Return how many were not taken yet; of all kinds for None."""
        with self._lock:
            return sum(each.left for each in self._reservations if kind in (None, each.kind))

    def takes(self) -> dict[str, int]:
        """Return how many sessions so far took one ('hit'), and how many found none of their kind ('empty')."""
        return dict(self._takes)

    def leased(self) -> Iterator[Reservation]:
        """Yield what is to be kept."""
        with self._lock:
            self._reservations = [each for each in self._reservations if each.left]
            yield from list(self._reservations)

    def release(self) -> None:
        """End all of them."""
        with self._lock:
            reservations, self._reservations = self._reservations, []
        do_all(partial(_release, each) for each in reservations)

    def _add(self, kind: RemoteSpec, link: HostLink, count: int, placement: Placement) -> int:
        if not count:
            return 0
        reservation = Reservation(kind, link, uuid.uuid4().hex)
        try:
            reservation.count = link.call("reserve", reservation.id, kind, count, seconds=ASK_SECONDS)
        except HostGone:
            placement.pass_over(link)
        with self._lock:
            self._reservations.append(reservation)
        return reservation.left

    def _one(self, kind: RemoteSpec) -> Reservation | None:
        """Take one of this kind off the count, on a host at random; None if there is none."""
        with self._lock:
            fitting = [each for each in self._reservations if each.left and each.kind == kind]
            self._takes["hit" if fitting else "empty"] += 1
            if not fitting:
                return None
            chosen = random.choices(fitting, [each.left for each in fitting])[0]  # noqa: S311
            chosen.count -= 1
            return chosen


def _release(reservation: Reservation) -> None:
    with contextlib.suppress(HostGone, EngineError):  # its lease ends, then
        reservation.link.call("release", reservation.id, seconds=CLOSE_SECONDS)


@contextlib.contextmanager
def _letting_go(reservation: Reservation) -> Iterator[None]:
    """Around an opening: of a host that is gone, or gave the places to others, nothing is left."""
    try:
        yield
    except (HostFull, HostGone):
        reservation.note_lost(reservation.id, "it could not be had")
