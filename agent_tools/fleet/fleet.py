"""A fleet owns sessions on other machines, as a `Runtime` owns the sessions of its own machine."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

from agent_tools.engines.engine import Container, Guest, RecipeLike
from agent_tools.errors import InvalidParams
from agent_tools.fleet.folder_sync import SyncedFolder
from agent_tools.fleet.placement import Placement, Reserved
from agent_tools.fleet.protocol import (
    LEASE_SECONDS,
    RENEWALS,
    WAIT_SECONDS,
    HostLink,
    Hosts,
    HostUnreachable,
    Load,
    RemoteSpec,
    image_word,
    remote_spec,
)
from agent_tools.fleet.remote_session import RemoteSession
from agent_tools.machine.rounds import begun, do_all
from agent_tools.runtime.engines import checked_engine, factory_of
from agent_tools.runtime.files.work_dir import remove_stale_temp_work_dirs
from agent_tools.runtime.pool import PoolState
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.sandbox.options import Config, Options

log = logging.getLogger("agent_tools.fleet")


class Fleet:
    """Owns sessions on hosts. Use it like a `Runtime`: `Sandbox(cfg, runtime=fleet)`. Thread-safe; a context manager.

    Args:
        hosts: the hosts, behind a transport such as Ray.
        lease: seconds after which a host closes sessions that this process does not renew.
        patience: seconds that a session waits for a free slot if all hosts are full.
        copies_files: sync `work_dir` with the host. If False, use `write_file` and `read_file` to transfer files.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        lease: float = LEASE_SECONDS,
        patience: float = WAIT_SECONDS,
        copies_files: bool = True,
    ) -> None:
        self._hosts = hosts
        self._owner_pid = os.getpid()
        self._copies_files = copies_files
        self._placement = Placement(hosts, patience)
        self._lock = threading.RLock()
        self._topping = threading.Lock()
        self._times_closed = 0  # generation of the reserve, which cancels earlier refills
        self._sessions: dict[str, RemoteSession] = {}
        self._reserved = Reserved()
        self._sweep = StaleFolderSweep(lease, time.monotonic())
        self._leases = LeaseRenewal(lease, self._leased)
        atexit.register(self.disconnect)

    # -- a fleet ------------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Load]:
        """Return the load of the hosts that answer, by name. Raises EngineUnavailable."""
        return self._placement.loads()

    def reserve(self, count: int, cfg: Config | None = None) -> int:
        """Begin to make sandboxes ahead, spread over all hosts; return how many, fewer than asked if slots are scarce.

        Each serves one later session of this fleet with these options, which then starts in milliseconds.

        Raises:
            InvalidParams: an option or the number is unusable.
            EngineUnavailable: the hosts cannot be listed.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidParams(f"{count!r:.80} sandboxes cannot be reserved: give a positive whole number.")
        return self._reserve(self._spec_of(Options.read(cfg or {})), count)

    def disconnect(self) -> None:
        """Close every session and release the hosts, which continue for other callers. A forked child does nothing."""
        if os.getpid() != self._owner_pid:
            return
        self.close_all()
        self._leases.end()
        self._hosts.close()
        atexit.unregister(self.disconnect)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- an owner of sessions -----------------------------------------------------------------------------------------

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the owner of the files in a work_dir, which are copied: this process."""
        return Guest.own(shares=False)

    def ask_engine(self) -> None:
        """Do nothing: each host checks its own engine."""

    @property
    def ensure_image(self) -> Callable[[RecipeLike], str]:
        """Return the name for the image of a recipe; each host has or builds its own image."""
        return image_word

    def open(self, key: str, spec: SessionSpec) -> RemoteSession:
        """Return the open session of this key, made if there is none; a host opens it at first use."""
        with self._lock:
            session = self._sessions.get(key)
            if session is None or session.is_closed:
                remote = remote_spec(spec)
                folder = SyncedFolder(spec.work_dir, Guest.own().outside, spec.limits) if self._copies_files else None
                open_ = partial(self._open, keep=spec.ahead.size)
                session = RemoteSession(spec, remote, open_, self._placement.pass_over, folder)
                self._sessions[key] = session
        return session

    def find(self, key: str) -> RemoteSession | None:
        """Return the open session of this key, if there is one."""
        with self._lock:
            session = self._sessions.get(key)
        return session if session and not session.is_closed else None

    def close(self, key: str) -> None:
        """Close one session; a missing one is not an error."""
        with self._lock:
            session = self._sessions.pop(key, None)
        if session:
            session.close()

    def prepare(self, spec: SessionSpec, patience: float = 0.0) -> int:
        """Reserve `pool` sandboxes for sessions like this; return how many are reserved."""
        kind = remote_spec(spec).kind
        self._keep(kind, spec.ahead.size, self._times_closed)
        return self._reserved.left(kind)

    @property
    def pools(self) -> PoolState:
        """The sandboxes made ahead, in numbers."""
        return PoolState(self._reserved.left(), self._reserved.takes())

    def close_all(self) -> None:
        """Close every session and reservation."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        do_all(session.close for session in sessions)
        self.close_pools()

    def close_pools(self) -> None:
        """Release unused reserved sandboxes."""
        with self._topping:
            self._times_closed += 1
        self._reserved.release()

    def stop(self) -> None:
        """Do nothing: hosts close sessions that are not renewed."""

    def settle(self) -> None:
        """Do nothing: each host removes its closed sandboxes."""

    def sweep(self) -> Sequence[Container]:
        """Do nothing: each host sweeps its own remains."""
        return ()

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _spec_of(self, options: Options) -> RemoteSpec:
        image = options.image or image_word(options.recipe)
        return remote_spec(options.session_spec(image, Path("/"))).kind

    def _open(self, id_: str, spec: RemoteSpec, *, keep: int) -> HostLink:
        self._leases.begin()
        link = self._reserved.open(id_, spec)
        if link is None:
            link, _ = self._placement.place(lambda link: self._open_on(link, id_, spec))
        if keep:
            work = partial(self._top_up, spec.kind, keep, self._times_closed)
            begun(work, "agent-tools-reserve")  # without a thread, the next opening does it
        return link

    def _top_up(self, kind: RemoteSpec, size: int, times_closed: int) -> None:
        try:
            self._keep(kind, size, times_closed)
        except Exception as exc:  # noqa: BLE001  (the session that took one is open; the next opening tries again)
            log.warning("the reserve could not be topped up: %r", exc)

    def _open_on(self, link: HostLink, id_: str, spec: RemoteSpec) -> None:
        self._placement.greet(link)
        link.call("open", id_, spec)

    def _keep(self, kind: RemoteSpec, size: int, times_closed: int) -> None:
        with self._topping:
            if times_closed == self._times_closed and (missing := size - self._reserved.left(kind)) > 0:
                self._reserve(kind, missing)

    def _reserve(self, kind: RemoteSpec, count: int) -> int:
        self._leases.begin()
        return self._reserved.add(kind, count, self._placement)

    def _leased(self) -> Iterator[Leased]:
        with self._lock:
            sessions = list(self._sessions.values())
        yield from sessions
        yield from self._reserved.leased()
        self._sweep.look(time.monotonic())


# Periodic removal of folders that killed processes of this machine left.


class StaleFolderSweep:
    """Sweeps stale folders for one process. Times are seconds of any clock."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._at = seconds, now
        self._lock = threading.Lock()

    def look(self, now: float) -> None:
        """Begin to sweep, in a thread, if the last sweep was `seconds` ago: a large folder must not delay renewals."""
        with self._lock:
            if now - self._at < self._seconds:
                return
            self._at = now
        begun(_sweep, "agent-tools-sweep")


def _sweep() -> None:
    try:
        remove_stale_temp_work_dirs()
    except Exception as exc:  # noqa: BLE001  (the next time comes, and nobody else would hear of it)
        log.warning("folders of processes that are gone could not be removed: %r", exc)


# The leases of a process: one thread regularly tells each host which sessions are still needed.


class Leased(Protocol):
    """An object that a host keeps as long as its lease is renewed."""

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has the session, and its id there; None while no host has it."""
        ...

    def note_lost(self, id_: str, why: str) -> None:
        """Record that the host has lost the object of this id; `why` is a clause."""
        ...


class LeaseRenewal:
    """Renews leases after the first call of `begin`. `leased` returns the objects to keep."""

    def __init__(self, seconds: float, leased: Callable[[], Iterable[Leased]]) -> None:
        self._seconds = seconds
        self._leased = leased
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Start to renew."""
        with self._lock:
            is_going_on = self._thread is not None and self._thread.is_alive()  # in a forked child it is not
            if not is_going_on and not self._is_over.is_set():
                self._thread = begun(self._go_on, "agent-tools-leases")

    def end(self) -> None:
        """Stop renewing."""
        self._is_over.set()

    def renew(self) -> None:
        """Renew all leases once, at several hosts in parallel, so that one that does not answer delays no other."""
        by_host: defaultdict[str, list[tuple[HostLink, str, Leased]]] = defaultdict(list)
        for each in self._leased():
            if place := each.place:
                by_host[place[0].name].append((*place, each))
        do_all(partial(self._renew, entries) for entries in by_host.values())

    def _go_on(self) -> None:
        while not self._is_over.wait(self._seconds / RENEWALS):
            self._renew_surely()

    def _renew_surely(self) -> None:
        try:
            self.renew()
        except Exception as exc:  # noqa: BLE001  (the next round is to come, whatever became of this one)
            log.warning("leases could not be renewed: %r", exc)

    def _renew(self, entries: list[tuple[HostLink, str, Leased]]) -> None:
        by_id = {id_: leased for _, id_, leased in entries}
        try:
            missing = entries[0][0].call("renew", list(by_id), seconds=self._seconds / 2)
        except HostUnreachable as exc:
            if exc.is_final:
                for id_, leased in by_id.items():
                    leased.note_lost(id_, "the machine that ran it is gone")
            return
        except Exception as exc:  # noqa: BLE001  (whatever one host fails at: the others, and the next round, go on)
            log.warning("the host %s did not renew its leases: %r", entries[0][0].name, exc)
            return
        for id_ in missing:
            if id_ in by_id:
                by_id[id_].note_lost(id_, "the machine that ran it has closed it")


# Connect to a fleet by its engine name, with options that the name does not include.


RAY = "ray"


def connect(
    word: str = "ray",
    *,
    hosts_per_node: int = 1,
    lease: float = LEASE_SECONDS,
    patience: float = WAIT_SECONDS,
    copies_files: bool = True,
) -> Fleet:
    """Return a fleet on a Ray cluster, which this process joins if it is in none.

    Args:
        word: 'ray', for this process's cluster, else the one in RAY_ADDRESS, else the one on this machine; or
            'ray://HOST:PORT' of a Ray client server.
        hosts_per_node: host processes of each node, which share its slots: 2 or 4 for nodes of more than 16 cores.
        lease: seconds after which a host closes sessions that this process does not renew.
        patience: seconds that a session waits for a free slot if all hosts are full.
        copies_files: keep `work_dir` the same here and there.

    Raises:
        InvalidParams: a value is unusable.
        EngineUnavailable: Ray is not installed, or there is no such cluster. This function starts none.
    """
    if checked_engine(word).partition("://")[0] != RAY:
        raise InvalidParams(f"engine={word!r:.80} has no fleet: give {RAY!r}, or one with an address.")
    made = factory_of(word)(
        word, hosts_per_node=hosts_per_node, lease=lease, patience=patience, copies_files=copies_files
    )
    assert isinstance(made, Fleet)
    return made
