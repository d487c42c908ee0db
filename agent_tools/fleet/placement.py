"""Chooses a host: the emptier of two random hosts, without those that are full or do not answer.

Two random hosts are nearly as good as all (the power of two choices), so no central list is needed. A host that did not
answer is skipped for a while: the cluster itself detects its end much later.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from agent_tools.errors import EngineError, EngineUnavailable, HostFull, SessionClosed, SessionLost
from agent_tools.fleet.protocol import (
    ASK_SECONDS,
    CLOSE_SECONDS,
    SEND_SECONDS,
    SKIP_SECONDS,
    WAIT_SECONDS,
    HostLink,
    Hosts,
    HostUnreachable,
    Load,
    RemoteSpec,
    SessionUnknown,
)
from agent_tools.machine.rounds import do_all
from agent_tools.results.execution import Restarted
from agent_tools.version import __version__

_FULL = "All hosts that answer are full"
_SEE = "`agent-tools fleet status` shows the nodes"
LOOK_SECONDS = 0.2  # seconds between two tries while all hosts are full

Opened = TypeVar("Opened")


class Placement:
    """Chooses hosts. Thread-safe. `clock` returns seconds, `wait` sleeps."""

    def __init__(
        self,
        hosts: Hosts,
        patience: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._hosts, self._patience, self._clock, self._wait = hosts, patience, clock, wait
        self._passed_over: dict[str, float] = {}
        self._greeted: set[str] = set()
        self._lock = threading.Lock()

    def place(self, open_: Callable[[HostLink], Opened]) -> tuple[HostLink, Opened]:
        """Call `open_` with hosts until one succeeds; return the host and the result.

        Raises:
            HostFull: all hosts are full, for as long as the patience lasts.
            EngineUnavailable: there is no host that answers.
        """
        until = self._clock() + self._patience
        while True:
            problems: list[str] = []
            for link in self._in_turn(problems):
                with self._problems(link, problems):
                    return link, open_(link)
            if self._clock() >= until:
                self._fail(problems)
            self._wait(LOOK_SECONDS)

    @contextlib.contextmanager
    def _problems(self, link: HostLink, problems: list[str]) -> Iterator[None]:
        """Record a host that is full or does not answer, so that the next one is tried."""
        try:
            yield
        except HostFull as exc:
            problems.insert(0, f"{_FULL}; of one: {exc}")
        except HostUnreachable as exc:
            self.pass_over(link)
            problems.append(str(exc))

    def pass_over(self, link: HostLink) -> None:
        """Skip a host that did not answer for a while, unless there is no other."""
        with self._lock:
            self._passed_over[link.name] = self._clock() + SKIP_SECONDS
            self._greeted.discard(link.name)

    def loads(self) -> dict[str, Load]:
        """Return the load of all hosts that answer, by name; several are asked at once."""
        loads: dict[str, Load] = {}

        def ask(link: HostLink) -> None:
            if load := self._load(link, []):
                loads[link.name] = load

        do_all(partial(ask, link) for link in self._hosts.links())
        return loads

    def links(self) -> list[HostLink]:
        """Return the hosts to try: those not known to be unreachable, else all. Raises EngineUnavailable."""
        links = list(self._hosts.links())
        if not links:
            return links
        with self._lock:
            now = self._clock()
            answering = [link for link in links if self._passed_over.get(link.name, 0.0) <= now]
        return answering or links

    def greet(self, link: HostLink) -> None:
        """Check that a host has this release of the package.

        Raises EngineError if not, HostUnreachable if it does not answer.
        """
        if link.name not in self._greeted:
            link.call("greet", __version__)
            with self._lock:
                self._greeted.add(link.name)

    def _in_turn(self, problems: list[str]) -> list[HostLink]:
        """Return two hosts at random, the emptier one first, and then the others."""
        links = self.links()
        random.shuffle(links)
        two, others = links[:2], links[2:]
        return self._emptier_first(two, problems) + others

    def _emptier_first(self, two: Sequence[HostLink], problems: list[str]) -> list[HostLink]:
        if len(two) < 2:
            return list(two)
        loads = [(load.share, index) for index, link in enumerate(two) if (load := self._load(link, problems))]
        return [two[index] for _, index in sorted(loads)]

    def _load(self, link: HostLink, problems: list[str]) -> Load | None:
        try:
            self.greet(link)
            load: Load = link.call("load", seconds=ASK_SECONDS)
        except HostUnreachable as exc:
            self.pass_over(link)
            problems.append(str(exc))
            return None
        with self._lock:
            self._passed_over.pop(link.name, None)
        return load

    def _fail(self, problems: Sequence[str]) -> NoReturn:
        if problems and problems[0].startswith(_FULL):
            raise HostFull(f"{problems[0]} Waited {self._patience:g} s (patience). Close sessions, or add nodes.")
        raise EngineUnavailable(problems[0] if problems else f"There is no host for sandboxes; {_SEE}.")


# The sandboxes that this process has reserved, by host and kind, each for one session.


@dataclass
class Reservation:
    """A reservation of one kind on one host. `count` sandboxes were not taken at the last report."""

    kind: RemoteSpec
    link: HostLink
    id: str
    count: int = 0
    is_lost: bool = False

    @property
    def left(self) -> int:
        """The number of sandboxes left."""
        return 0 if self.is_lost else self.count

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host and the id there, while a sandbox is left."""
        return (self.link, self.id) if self.left else None

    def note_lost(self, id_: str, why: str) -> None:
        """Record that the host has lost it."""
        self.is_lost = True


class Reserved:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reservations: list[Reservation] = []
        self._takes: Counter[str] = Counter()

    def add(self, kind: RemoteSpec, count: int, placement: Placement) -> int:
        """Reserve `count` slots, each on the emptiest host, and return how many there was room for."""
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
        """Open a session on a reserved sandbox of its kind; return its host, None if there is none left."""
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
        """Yield the reservations to renew."""
        with self._lock:
            self._reservations = [each for each in self._reservations if each.left]
            yield from list(self._reservations)

    def release(self) -> None:
        """Release all reservations."""
        with self._lock:
            reservations, self._reservations = self._reservations, []
        do_all(partial(_release, each) for each in reservations)

    def _add(self, kind: RemoteSpec, link: HostLink, count: int, placement: Placement) -> int:
        if not count:
            return 0
        reservation = Reservation(kind, link, uuid.uuid4().hex)
        try:
            reservation.count = link.call("reserve", reservation.id, kind, count, seconds=ASK_SECONDS)
        except HostUnreachable:
            placement.pass_over(link)
        with self._lock:
            self._reservations.append(reservation)
        return reservation.left

    def _one(self, kind: RemoteSpec) -> Reservation | None:
        """Count one of this kind as taken, on a random host; return None if there is none."""
        with self._lock:
            fitting = [each for each in self._reservations if each.left and each.kind == kind]
            self._takes["hit" if fitting else "empty"] += 1
            if not fitting:
                return None
            chosen = random.choices(fitting, [each.left for each in fitting])[0]  # noqa: S311
            chosen.count -= 1
            return chosen


def _release(reservation: Reservation) -> None:
    with contextlib.suppress(HostUnreachable, EngineError):  # its lease ends, then
        reservation.link.call("release", reservation.id, seconds=CLOSE_SECONDS)


@contextlib.contextmanager
def _letting_go(reservation: Reservation) -> Iterator[None]:
    """During an opening, drop the reservations of a host that is gone or has released them."""
    try:
        yield
    except (HostFull, HostUnreachable):
        reservation.note_lost(reservation.id, "it could not be had")


# Finds the host of a session at first use, and another one after the host was lost.
#
# A message is sent once. If it is not answered, the session counts as lost, since its effect is not known.

READING = ("get_piece",)
"""Methods that follow code that was run."""
_CLOSED_MEANWHILE = "The session was closed while its code ran."

Open = Callable[[str, RemoteSpec], HostLink]
"""Opens a session of this id on a host; returns the host."""


class HostFinder:
    """Finds the host of one session. Thread-safe.

    `open_` finds a host; `pass_over` is called with one that does not answer.

    Attributes:
        remote: the specification of the session on its next host.
        at_new: called when another host has it.
    """

    def __init__(
        self,
        remote: RemoteSpec,
        open_: Open,
        pass_over: Callable[[HostLink], object],
        at_new: Callable[[], object],
    ) -> None:
        self.remote = remote
        self._open, self._pass_over, self._at_new = open_, pass_over, at_new
        self._opening = threading.RLock()  # held while a host opens the session
        # guards the state; held only for moments, since renewals of other sessions wait for it
        self._lock = threading.Lock()
        self._place: tuple[HostLink, str] | None = None
        self._lost: Restarted | None = None
        self._owner_pid = os.getpid()
        self.is_closed = False

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has the session, and its id there."""
        return None if self.is_closed or os.getpid() != self._owner_pid else self._place

    def placed(self) -> tuple[HostLink, str]:
        """Return the host of the session, after finding one if needed.

        Raises:
            HostFull: all hosts are full.
            EngineError: no host answers, or the sandbox could not be started.
            SessionClosed: the session was closed during the wait.
        """
        with self._opening:
            if place := self._place:
                return place
            id_ = uuid.uuid4().hex
            link = self._open(id_, self.remote)
            with self._lock:
                self._place = link, id_
            if self.is_closed:
                self._close_at(link, id_)
                self.refuse_closed()
            self._at_new()
            return link, id_

    def note_lost(self, id_: str, why: str) -> None:
        """Record that the host has lost the session of this id: the next use finds another host, and reports it.

        A report on an earlier host has no effect.
        """
        with self._lock:
            if self._place is not None and self._place[1] == id_:
                self._place, self._lost = None, Restarted(why)

    def take_lost(self) -> Restarted | None:
        """Return the report of a lost host, once."""
        with self._lock:
            lost, self._lost = self._lost, None
        return lost

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the host for this session.

        Raises:
            SessionLost: the host is gone, or has closed the session.
            SessionClosed: the session was closed, before or during the wait.
        """
        self.refuse_closed()
        link, id_ = self.placed()
        with self._losing(link, id_):
            if method in READING:
                return self._sent(link, method, id_, *arguments)
            return link.call(method, id_, *arguments)

    def follow(self, what: str, run: str, *arguments: Any) -> Generator[Any, None, None]:
        """Yield the items of a run at the host. Errors as for `ask`."""
        self.refuse_closed()
        link, id_ = self.placed()
        is_over = False
        try:
            with self._losing(link, id_):
                items, is_over = link.call("begin", id_, run, what, *arguments)
            yield from items
            while not is_over:
                with self._losing(link, id_):
                    items, is_over = self._sent(link, "more", id_, run)
                yield from items
        finally:
            if not is_over:
                link.tell("drop", id_, run)

    def _sent(self, link: HostLink, method: str, *arguments: Any) -> Any:
        """Call a method during a run; retry for a while if no message can be sent."""
        until = time.monotonic() + SEND_SECONDS
        while True:
            try:
                return link.call(method, *arguments)
            except HostFull as exc:
                self.refuse_closed_meanwhile()
                if time.monotonic() > until:
                    raise HostUnreachable(f"the host {link.name} takes no messages of this process") from exc
            time.sleep(LOOK_SECONDS)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the host, if there is one, without waiting for an answer."""
        if place := self._place:
            place[0].tell(method, place[1], *arguments)

    def close(self) -> bool:
        """End the session on its host; return whether it was open. In a forked child nothing happens."""
        if self.is_closed or os.getpid() != self._owner_pid:
            return False
        self.is_closed = True
        if place := self._place:
            self._close_at(*place)
        return True

    def _close_at(self, link: HostLink, id_: str) -> None:
        with contextlib.suppress(HostUnreachable, EngineError):  # its lease ends, then
            link.call("close", id_, seconds=CLOSE_SECONDS)

    def refuse_closed(self, message: str = "The session is closed.") -> None:
        """Raise SessionClosed if the session is closed."""
        if self.is_closed or os.getpid() != self._owner_pid:
            raise SessionClosed(message)

    def refuse_closed_meanwhile(self) -> None:
        """Raise SessionClosed if it was closed while code ran."""
        self.refuse_closed(_CLOSED_MEANWHILE)

    @contextlib.contextmanager
    def _losing(self, link: HostLink, id_: str) -> Iterator[None]:
        """During a call of a host, treat a host that is gone as a lost session."""
        try:
            yield
        except HostUnreachable as exc:
            self.refuse_closed_meanwhile()
            self._pass_over(link)
            self.note_lost(id_, "the machine that ran it is gone")
            raise SessionLost(
                "The machine that ran it is gone. Variables are lost, and so is what this call wrote; whether the code "
                "ran to its end is not known. The next call starts on another machine."
            ) from exc
        except SessionUnknown as exc:
            self.refuse_closed_meanwhile()
            self.note_lost(id_, "the machine that ran it has closed it")
            raise SessionLost(
                "The machine that ran it has closed the session. Variables are lost; nothing was run. The next call "
                "starts anew."
            ) from exc
        except EngineError:
            self.refuse_closed_meanwhile()
            raise
