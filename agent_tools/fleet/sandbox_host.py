"""A host runs the sessions of one node for callers on other machines.

Theory of operation
    A caller reaches a host by messages of any carrier (fleet/protocol.py lists the methods). Every session and
    every reservation has a lease: one that its caller does not renew in time is closed. The host's own process has the
    lifelines of its sandboxes, so that they end with it, whatever ends it.

    Slots bound how many sandboxes live or are being made, which bounds the node's memory. A host that has none left
    says so at once (`HostFull`), so that the caller can ask another one.

    A session is at most once what it is: a run that is begun is never begun again, and an id that is not known
    (`SessionUnknown`) has run nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from agent_tools.engines.engine import Recipe
from agent_tools.errors import EngineError, HostFull, InvalidParams
from agent_tools.fleet.fleet import StaleFolderSweep
from agent_tools.fleet.host_run import Batch
from agent_tools.fleet.leased_session import LeasedSession
from agent_tools.fleet.protocol import LEASE_SECONDS, STARTS_AT_ONCE, HostFacts, Load, RemoteSpec, SessionUnknown
from agent_tools.machine.folder import Facts
from agent_tools.machine.removal import remove_tree
from agent_tools.machine.rounds import begun, do_all
from agent_tools.runtime.files.work_dir import make_temp_work_dir
from agent_tools.runtime.runtime import Runtime
from agent_tools.version import __version__

log = logging.getLogger("agent_tools.fleet")


class SandboxHost:
    """Runs sessions for remote callers. Thread-safe. `clock` returns seconds."""

    def __init__(
        self,
        runtime: Runtime,
        slots: int,
        lease: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime, self._slots, self._lease, self._clock = runtime, Slots(slots), lease, clock
        self._base = make_temp_work_dir()
        self._leased: dict[str, LeasedSession] = {}
        self._reservations: dict[str, HostReservation] = {}
        self._made = 0
        self._lock = threading.Lock()
        self._opens = threading.BoundedSemaphore(STARTS_AT_ONCE)
        self._is_closed = threading.Event()
        self._sweep = StaleFolderSweep(lease, clock())
        self.used_at = clock()
        if begun(self._tend, "agent-tools-leases") is None:
            raise EngineError("A host has no thread to tend its leases (pids limit, or ulimit -u).")

    # -- a host -------------------------------------------------------------------------------------------------------

    def greet(self, version: str) -> None:
        """Check that a caller is of the same release.

        Raises:
            EngineError: it is not; the message has both versions.
        """
        if version != __version__:
            raise EngineError(
                f"The caller has agent_tools {version}, and the host {__version__}: install the same release on both. "
                "With Ray: runtime_env={'pip': ['agent-tools-sandbox==...']}, or one image for all nodes."
            )

    def facts(self) -> HostFacts:
        """Return facts about the host's process."""
        return HostFacts(platform.node(), os.getpid(), __version__)

    def ensure_image(self, recipe: Recipe) -> str:
        """Build the image of a recipe if it is missing; return its tag. Raises EngineError."""
        return self._runtime.ensure_image(recipe)

    def load(self) -> Load:
        """Return the host's load."""
        with self._lock:
            ready = sum(each.ready for each in self._reservations.values())
            return Load(self._slots.taken, self._slots.most, ready)

    def renew(self, ids: Sequence[str]) -> list[str]:
        """Renew the leases of these sessions and reservations; return the unknown ones."""
        return [each for each in ids if not self._renewed(each)]

    def close_all(self) -> None:
        """Close everything; later openings fail."""
        self._is_closed.set()
        with self._lock:
            ids = [*self._leased, *self._reservations]
        try:
            do_all(partial(self.close, each) for each in ids)
        finally:
            self._runtime.close_all()
            remove_tree(self._base)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def open(self, id_: str, spec: RemoteSpec, reservation: str = "") -> None:
        """Start a session, or take one that was reserved.

        Raises:
            HostFull: every slot is taken.
            EngineError, InvalidParams, PreludeError: as for any session.
        """
        leased = self._reserved(spec, reservation)
        if leased is None:
            self._take_slot()
            leased = self._started(spec, self._slots.free)
        try:
            leased.hand_over(spec)
        except BaseException:
            self._close_leased(leased)
            raise
        with self._lock:
            leased.expires = self._clock() + self._lease
            is_over = self._is_closed.is_set()
            current = leased if is_over else self._leased.setdefault(id_, leased)
            current.expires = leased.expires
        if is_over or current is not leased:  # an opening that was asked for again had come through the first time
            self._close_leased(leased)
        if is_over:
            raise HostFull("The host is closed.")

    def close(self, id_: str) -> None:
        """Close a session, or end a reservation; a missing one is not an error."""
        with self._lock:
            leased, reservation = self._leased.pop(id_, None), self._reservations.pop(id_, None)
        self._end(leased, reservation)

    def reserve(self, id_: str, spec: RemoteSpec, count: int) -> int:
        """Begin to make `count` sandboxes ahead, limited by the free slots; return how many."""
        self.used_at = self._clock()
        count = 0 if self._is_closed.is_set() else self._slots.take_up_to(count)
        if not count:
            return 0
        make = partial(self._started, give_back=bool, is_ahead=True)  # the reservation itself gives slots back
        reservation = HostReservation(spec, count, make, self._slots.free)
        with self._lock:
            reservation.expires = self._clock() + self._lease
            is_wanted = not self._is_closed.is_set() and self._reservations.setdefault(id_, reservation) is reservation
        if not is_wanted:
            reservation.end()
            return 0
        return count

    def release(self, id_: str) -> None:
        """End a reservation."""
        self.close(id_)

    # -- what a session does ------------------------------------------------------------------------------------------

    def begin(self, id_: str, run: str, what: str, *arguments: Any) -> Batch:
        """Begin a run of the kind 'code', 'command', 'save' or 'load'. Return its first items.

        Raises:
            InvalidParams: the kind is unknown.
        """
        leased = self._find(id_)
        return getattr(leased, f"begin_{known(what, GOING_ON)}")(run, *arguments)  # type: ignore[no-any-return]

    def more(self, id_: str, run: str) -> Batch:
        """Wait for the next items of a run."""
        return self._find(id_).more(run)

    def drop(self, id_: str, run: str) -> None:
        """End a run without a reader."""
        self._find(id_).drop(run)

    def cancel(self, id_: str, run: str) -> None:
        """End a run or a command."""
        self._find(id_).cancel(run)

    def order(self, id_: str, run: str, number: int, what: str, data: Any) -> None:
        """Carry out an order of the caller's functions."""
        self._find(id_).order(run, number, what, data)

    def do(self, id_: str, noun: str, method: str, *arguments: Any) -> Any:
        """Call a method of the session, its files or its variables; the last argument may be a dict of options.

        Raises:
            InvalidParams: callers on other machines may not call it.
        """
        known(method, METHODS.get(noun, ()))
        session = self._find(id_).session
        target = session if noun == "session" else getattr(session, noun)
        options = arguments[-1] if noun == "files" and arguments and isinstance(arguments[-1], dict) else {}
        given = arguments[:-1] if options else arguments
        return getattr(target, method)(*given, **options)

    def put_piece(self, id_: str, name: str, facts: Facts, offset: int, data: bytes) -> None:
        """Write a piece of a file of the caller; the last one moves it to its place."""
        self._find(id_).put_piece(name, facts, offset, data)

    def spool(self, id_: str, name: str, offset: int, data: bytes) -> None:
        """Store a piece of an archive to be loaded."""
        self._find(id_).spool(name, offset, data)

    def get_piece(self, id_: str, name: str, facts: Facts, offset: int) -> bytes:
        """Return a piece of a file that the code wrote."""
        return self._find(id_).piece(name, facts, offset)

    # -- slots and leases ---------------------------------------------------------------------------------------------

    def _find(self, id_: str) -> LeasedSession:
        with self._lock:
            leased = self._leased.get(id_)
            if leased is None:
                raise SessionUnknown(f"The session {id_} is not here any more.")
            leased.expires = self._clock() + self._lease
            return leased

    def _reserved(self, spec: RemoteSpec, id_: str) -> LeasedSession | None:
        with self._lock:
            reservation = self._reservations.get(id_)
        if reservation is None or reservation.kind != spec.kind:
            return None
        taken = reservation.take(spec.limits.start_timeout)
        if taken and not taken.session.is_alive:
            self._close_leased(taken)
            taken = None
        with self._lock:
            if reservation.left == 0:
                self._reservations.pop(id_, None)
        return taken

    def _started(
        self, spec: RemoteSpec, give_back: Callable[[int], object], *, is_ahead: bool = False
    ) -> LeasedSession:
        """Start a session; release its slot if that fails."""
        with self._lock:
            self._made += 1
            key = f"{self._made}"
        try:
            with self._opens, contextlib.ExitStack() as undo:
                leased = LeasedSession(self._runtime, self._base, key, spec)
                undo.callback(leased.close)
                leased.open(is_ahead=is_ahead)
                undo.pop_all()
                return leased
        except BaseException:
            give_back(1)
            raise

    def _take_slot(self) -> None:
        self.used_at = self._clock()
        if self._is_closed.is_set():
            raise HostFull("The host is closed.")
        self._slots.take()

    def _close_leased(self, leased: LeasedSession) -> None:
        try:
            leased.close()
        finally:
            self._slots.free(1)

    def _end(self, leased: LeasedSession | None, reservation: HostReservation | None) -> None:
        try:
            if leased:
                self._close_leased(leased)
        finally:
            if reservation:
                reservation.end()

    def _end_late(self, leased: LeasedSession | None, reservation: HostReservation | None) -> None:
        try:
            self._end(leased, reservation)
        except Exception as exc:  # noqa: BLE001  (nobody else would hear of it, and the other leases are to be tended)
            log.warning("what was not renewed could not be closed: %r", exc)

    def _renewed(self, id_: str) -> bool:
        with self._lock:
            leased: LeasedSession | HostReservation | None = self._leased.get(id_) or self._reservations.get(id_)
            self.used_at = self._clock()
            if leased:
                leased.expires = self.used_at + self._lease
            return leased is not None

    def _tend(self) -> None:
        """Close sessions that were not renewed, and remove folders of killed processes of this machine."""
        while not self._is_closed.wait(min(1.0, self._lease / 4)):
            now = self._clock()
            self._sweep.look(now)
            with self._lock:
                late = [id_ for id_, each in self._leased.items() if each.expires < now]
                late += [id_ for id_, each in self._reservations.items() if each.expires < now]
                ends = [
                    partial(self._end_late, self._leased.pop(id_, None), self._reservations.pop(id_, None))
                    for id_ in late
                ]
            if ends and begun(partial(do_all, ends), "agent-tools-ends") is None:
                do_all(ends)


# The slots of a host count its sandboxes, existing or being made, and limit them.


class Slots:
    """Thread-safe.

    Attributes:
        most: the number of all.
        taken: the number of those that are not free.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise InvalidParams(f"A host with {most} slots can hold nothing: give 1 or more.")
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Take one.

        Raises:
            HostFull: none is free.
        """
        if not self.take_up_to(1):
            raise HostFull(f"{self.taken} of {self.most} slots are taken.")

    def take_up_to(self, count: int) -> int:
        """Take up to `count` free slots; return how many."""
        with self._lock:
            found = max(0, min(count, self.most - self.taken))
            self.taken += found
            return found

    def free(self, count: int) -> None:
        """Release `count` slots."""
        with self._lock:
            self.taken -= count


# The methods that a caller may call by name.


METHODS: Mapping[str, Collection[str]] = {
    "session": ("interrupt", "restart", "reset", "add_functions"),
    "files": ("read", "write", "scan", "stat", "move", "remove", "make_dir"),
    "variables": ("define", "undo", "checkpoint", "rollback"),
}
"""Methods that a caller may call by name, of the session and its parts."""
GOING_ON = ("code", "command", "save", "load")
"""Kinds of runs that yield items."""


def known(verb: str, verbs: Collection[str]) -> str:
    """Check a method name. Raises InvalidParams for an unknown one."""
    if verb not in verbs:
        raise InvalidParams(f"{verb!r:.40} is not a method for callers on another machine.")
    return verb


# Sandboxes that a caller has reserved: made ahead, before the caller needs them, and each taken by one of its sessions.
#
# A few threads make them, limited by the starts at a time; a caller that takes one still being made waits for it. A
# reservation has a lease, as a session does, and ends when all of it is taken.


log = logging.getLogger("agent_tools.fleet")


class HostReservation:
    """Reserved sandboxes of one kind. `make` returns a running one, or raises; `give_back` releases a slot."""

    def __init__(
        self,
        spec: RemoteSpec,
        count: int,
        make: Callable[[RemoteSpec], LeasedSession],
        give_back: Callable[[int], object],
    ) -> None:
        self.kind = spec.kind
        self.expires = float("inf")
        self._make, self._give_back = make, give_back
        self._to_make = count
        self._being_made = 0
        self._ready: deque[LeasedSession] = deque()
        self._is_over = False
        self._changed = threading.Condition()
        self._threads = [begun(self._work, "agent-tools-reserve") for _ in range(min(count, STARTS_AT_ONCE))]

    @property
    def ready(self) -> int:
        """Sandboxes that no session has taken yet."""
        return len(self._ready)

    @property
    def left(self) -> int:
        """The number of sandboxes that can be taken, with those not made yet."""
        with self._changed:
            return self._to_make + self._being_made + len(self._ready)

    def take(self, seconds: float) -> LeasedSession | None:
        """Return a sandbox, after waiting if it is still being made; None if there is none left."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or not (self._to_make or self._being_made), seconds)
            return self._ready.popleft() if self._ready else None

    def end(self) -> None:
        """Stop making sandboxes, close unused ones, and wait for those being made."""
        with self._changed:
            self._is_over = True
            freed, self._to_make = self._to_make + len(self._ready), 0
            unused = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        try:
            for leased in unused:
                _close(leased)
        finally:
            self._give_back(freed)
        for thread in filter(None, self._threads):
            thread.join()

    def _work(self) -> None:
        while self._begin_one():
            made = None
            try:
                made = self._make(self.kind)
            except Exception as exc:  # noqa: BLE001  (a session that asks starts cold, and is told)
                log.info("a sandbox could not be made ahead: %r", exc)
            self._keep(made)

    def _begin_one(self) -> bool:
        with self._changed:
            if not self._to_make:
                return False
            self._to_make -= 1
            self._being_made += 1
            return True

    def _keep(self, made: LeasedSession | None) -> None:
        with self._changed:
            self._being_made -= 1
            is_wanted = made is not None and not self._is_over
            if made is not None and is_wanted:
                self._ready.append(made)
            self._changed.notify_all()
        if not is_wanted:
            if made:
                _close(made)
            self._give_back(1)


def _close(leased: LeasedSession) -> None:
    """Close an unused sandbox; a failure does not affect the others and their slots."""
    try:
        leased.close()
    except Exception as exc:  # noqa: BLE001  (whatever it is: its slot is to be given back)
        log.warning("a sandbox made ahead could not be closed: %r", exc)
