"""The choice of a host: the emptier one of two at random, past those that are full or do not answer.

Two asked at random come close to asking all (the power of two choices), so nobody lists who holds what. A host
that did not answer is passed over for a while: whoever watches the cluster says much later that it is dead.
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
LOOK_SECONDS = 0.2  # between two looks at hosts that were all full

Opened = TypeVar("Opened")


class Placement:
    """Thread-safe. `clock` gives seconds, `wait` spends them."""

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
        """Have a host open something, at most once on each try; return the host and what `open_` gave.

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
        """Around a try: a host that is full, or does not answer, makes way for the next one."""
        try:
            yield
        except HostFull as exc:
            problems.insert(0, f"{_FULL}; of one: {exc}")
        except HostUnreachable as exc:
            self.pass_over(link)
            problems.append(str(exc))

    def pass_over(self, link: HostLink) -> None:
        """Ask a host that did not answer only where there is no other, for a while."""
        with self._lock:
            self._passed_over[link.name] = self._clock() + SKIP_SECONDS
            self._greeted.discard(link.name)

    def loads(self) -> dict[str, Load]:
        """Return all hosts that answer, by name, in numbers; several are asked at once."""
        loads: dict[str, Load] = {}

        def ask(link: HostLink) -> None:
            if load := self._load(link, []):
                loads[link.name] = load

        do_all(partial(ask, link) for link in self._hosts.links())
        return loads

    def links(self) -> list[HostLink]:
        """Return the hosts to ask: those that answered as far as is known, else all. Raises EngineUnavailable."""
        links = list(self._hosts.links())
        if not links:
            return links
        with self._lock:
            now = self._clock()
            answering = [link for link in links if self._passed_over.get(link.name, 0.0) <= now]
        return answering or links

    def greet(self, link: HostLink) -> None:
        """Check that a host has our release. Raises EngineError if not, HostUnreachable if it does not answer."""
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


# The sandboxes that this process has reserved, by host and kind; each is taken by one session.


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
        except HostUnreachable:
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
    with contextlib.suppress(HostUnreachable, EngineError):  # its lease ends, then
        reservation.link.call("release", reservation.id, seconds=CLOSE_SECONDS)


@contextlib.contextmanager
def _letting_go(reservation: Reservation) -> Iterator[None]:
    """Around an opening: of a host that is gone, or gave the places to others, nothing is left."""
    try:
        yield
    except (HostFull, HostUnreachable):
        reservation.note_lost(reservation.id, "it could not be had")


# The way from a session to the host that has it: found at the first use, and anew once it is lost.
#
# A message is sent once. One that is not answered has lost the session, since nobody knows what became of it.

READING = ("get_piece",)
"""Methods that follow code that was run."""
_CLOSED_MEANWHILE = "The session was closed while its code ran."

Open = Callable[[str, RemoteSpec], HostLink]
"""Has a host open a session of this id; returns the host."""


class HostFinder:
    """Any thread may call any method. `open_` finds a host, `pass_over` is told of one that does not answer.

    Attributes:
        remote: the makings of the session on its next host.
        at_new: is called when another host has it.
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
        self._opening = threading.RLock()  # held as long as a host takes to open it
        self._lock = threading.Lock()  # around what is known; never held for long, since renewals of others wait for it
        self._place: tuple[HostLink, str] | None = None
        self._lost: Restarted | None = None
        self._owner_pid = os.getpid()
        self.is_closed = False

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has the session, and its id there."""
        return None if self.is_closed or os.getpid() != self._owner_pid else self._place

    def placed(self) -> tuple[HostLink, str]:
        """Return the host that has the session; one is found if there is none.

        Raises:
            HostFull: all hosts are full.
            EngineError: no host answers, or the sandbox could not be started.
            SessionClosed: the session was closed meanwhile.
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
        """The host does not have the session of this id any more: the next use finds another one, and tells.

        Word of one that has been followed by another already changes nothing.
        """
        with self._lock:
            if self._place is not None and self._place[1] == id_:
                self._place, self._lost = None, Restarted(why)

    def take_lost(self) -> Restarted | None:
        """Return what is to be told of a host that was lost, once."""
        with self._lock:
            lost, self._lost = self._lost, None
        return lost

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the host for this session.

        Raises:
            SessionLost: it is gone, or has closed the session.
            SessionClosed: the session was closed, before or meanwhile.
        """
        self.refuse_closed()
        link, id_ = self.placed()
        with self._losing(link, id_):
            if method in READING:
                return self._sent(link, method, id_, *arguments)
            return link.call(method, id_, *arguments)

    def follow(self, what: str, run: str, *arguments: Any) -> Generator[Any, None, None]:
        """Yield the items of something that goes on at the host. Errors as for `ask`."""
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
        """Call a method in the middle of something: where no message can be sent now, it is sent a little later."""
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
        """Call a method of the host, if there is one, and wait for nothing."""
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
        """Raise SessionClosed if it is."""
        if self.is_closed or os.getpid() != self._owner_pid:
            raise SessionClosed(message)

    def refuse_closed_meanwhile(self) -> None:
        """Raise SessionClosed if it was closed while code ran."""
        self.refuse_closed(_CLOSED_MEANWHILE)

    @contextlib.contextmanager
    def _losing(self, link: HostLink, id_: str) -> Iterator[None]:
        """Around what a host does: one that is gone has lost the session."""
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
