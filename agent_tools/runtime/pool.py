"""Pools of pre-warmed sandboxes, one pool for each kind; a pool makes its sandboxes one at a time.

A thread makes missing sandboxes as soon as one was taken, replaces those older than `pool_max_age`, and makes no more
if no session has asked for that long. After an error it stops, writes one line to the log, and retries at the first
take after RETRY_SECONDS.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Union

from agent_tools.engines.engine import Engine, Guest, Isolation
from agent_tools.engines.volumes import Volume
from agent_tools.errors import AgentToolsError, PreludeError
from agent_tools.limits import Limits
from agent_tools.machine.background import Do
from agent_tools.machine.folder import open_folder
from agent_tools.machine.guest_ids import hand_over
from agent_tools.machine.machine import IS_LINUX
from agent_tools.machine.path_walk import identity
from agent_tools.machine.private_folder import private_base
from agent_tools.runtime.files.claims import is_claimed
from agent_tools.runtime.files.empty_work_dir import EmptyWorkDir
from agent_tools.runtime.files.new_work_dirs import forget_made, is_made_here
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.sandbox.sandbox import RunningSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.stoppable import StoppableEngine
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.skills.skill import Skill

# The kind of a sandbox: all options that are fixed when it is made. It can serve any session of the same kind.


RETRY_SECONDS = 60.0
PRELOAD = "AGENT_TOOLS_PRELOAD"  # only guest/preload.py reads it
_OF_THE_FOLDER = ("max_work_dir_bytes", "max_work_dir_entries", "min_disk_free")  # enforced by the host
_OF_EACH_USE = ("max_variables_bytes",)  # sent to the sandbox with the order


@dataclass(frozen=True)
class Kind:
    """Sandboxes of equal kinds are identical for user code. `folder` is the parent of the work_dirs."""

    image: str
    isolation: Isolation
    limits: Limits
    transport: TransportName
    checkpoint: bool
    preload: tuple[str, ...]
    folder: Path
    skills: tuple[Skill, ...] = ()
    volumes: tuple[Volume, ...] = ()

    @classmethod
    def of(cls, spec: SessionSpec, guest: Guest) -> Kind:
        """Return the kind that a session needs.

        It leaves out limits that the host enforces or sends with an order, and the location of a copied work_dir.
        """
        shares, usual = guest.shares_files, Limits()
        free = {name: getattr(usual, name) for name in (*_OF_EACH_USE, *(_OF_THE_FOLDER if shares else ()))}
        return cls(
            image=spec.image,
            isolation=spec.telling_isolation,
            limits=replace(spec.limits, **free),
            transport=spec.transport,
            checkpoint=spec.checkpoint,
            preload=spec.ahead.preload,
            folder=spec.work_dir.parent if shares else Path(tempfile.gettempdir()),
            skills=spec.skills,
            volumes=spec.volumes,
        )

    def spec(self, work_dir: Path) -> SessionSpec:
        """Return the specification of a sandbox of this kind that no session has yet."""
        told = {PRELOAD: ",".join(self.preload)} if self.preload else {}
        isolation = replace(self.isolation, env={**self.isolation.env, **told})
        return SessionSpec(
            self.image,
            work_dir,
            isolation,
            self.limits,
            self.transport,
            checkpoint=self.checkpoint,
            is_blank=True,
            skills=self.skills,
            volumes=self.volumes,
        )


Miss = Literal["empty", "failed", "folder", "ended"]
"""Why a session started cold: none was ready yet; none could be made; its work_dir is not one that can be replaced; all
that were ready had ended."""

WARM_UP = "__import__('sandbox').warm_up()"
SETTLE_SECONDS = 0.05  # seconds before the next one is made, so that the session of the last one has its first result

_log = logging.getLogger("agent_tools.pool")


@dataclass
class ReadySandbox:
    """A ready sandbox, its empty folder, and its creation time (seconds of the pool's clock)."""

    sandbox: RunningSandbox
    blank: EmptyWorkDir
    made_at: float

    @property
    def is_usable(self) -> bool:
        """True while it and its kernel live."""
        kernel = self.sandbox.kernel
        return kernel is not None and kernel.is_alive() and self.sandbox.is_usable

    def end(self, behind: Do) -> None:
        """End and remove it."""
        self.sandbox.end(behind)
        self.sandbox.close()
        self.blank.remove()


Make = Callable[[Engine, Kind], tuple[RunningSandbox, EmptyWorkDir]]


def make(engine: Engine, kind: Kind) -> tuple[RunningSandbox, EmptyWorkDir]:
    """Start a sandbox on an empty folder, and run one silent cell, since a kernel's first cell takes longer.

    The cell uses the preloaded modules, whose first use takes longer, too.

    Raises:
        AgentToolsError, OSError: it could not be started.
    """
    with ExitStack() as undo:
        blank = EmptyWorkDir(kind.folder, engine.guest)
        undo.callback(blank.remove)
        spec = kind.spec(blank.path)
        sandbox = RunningSandbox(engine, spec, Quota(blank.path, spec.limits))
        undo.callback(sandbox.close)
        sandbox.define(WARM_UP, kind.limits.start_timeout)
        sandbox.sandbox.promote()
        undo.pop_all()
    return sandbox, blank


class Pool:
    """The pool of one kind. Thread-safe. `behind` runs background work; `clock` returns seconds."""

    def __init__(
        self,
        engine: Engine,
        kind: Kind,
        behind: Do,
        clock: Callable[[], float] = time.monotonic,
        make: Make = make,
    ) -> None:
        self.kind = kind
        self.takes: Counter[Literal["hit"] | Miss] = Counter()
        self.failure = ""
        """Why the latest sandbox could not be made; '' if it could."""
        self._engine, self._behind, self._clock, self._make = engine, behind, clock, make
        self._size = 0
        self._ready: deque[ReadySandbox] = deque()
        self._later: deque[Callable[[], None]] = deque()  # removals that need not delay a session
        self._asked_at = clock()
        self._failed_at = -float("inf")
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> int:
        """The number of sandboxes that are ready now."""
        return len(self._ready)

    @property
    def asked_at(self) -> float:
        """The time (seconds of the clock) of the last request of a session."""
        return self._asked_at

    def keep(self, size: int) -> None:
        """Keep at least `size` sandboxes ready from now on."""
        with self._changed:
            self._asked_at, self._size = self._clock(), max(self._size, size)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._tend, name="agent-tools-pool", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, patience: float) -> int:
        """Wait up to `patience` seconds until all are ready or one failed; return how many are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready >= self._size or bool(self.failure), patience)
            return self.ready

    def take(self, spec: SessionSpec, quota: Quota) -> RunningSandbox | None:
        """Return a sandbox for this session; None if none is ready, so that the session starts cold.

        Raises:
            InvalidParams, EngineError: as a cold start's would be.
        """
        outcome = self._taken(spec, quota)
        with self._changed:
            self._asked_at = self._clock()
            self.takes[outcome if isinstance(outcome, str) else "hit"] += 1
            self._changed.notify_all()
        return None if isinstance(outcome, str) else outcome

    def close(self, patience: float | None = None) -> None:
        """Make no more, and remove the sandboxes that no session took.

        With `patience` (seconds), a thread that is still making one after that removes it itself.
        """
        with self._changed:
            self._is_closed, thread = True, self._thread
            self._changed.notify_all()
        if thread:
            thread.join(patience)
        self._end_ready()
        self._do_later()

    def _end_ready(self) -> None:
        while ready := self._pop():
            ready.end(self._behind)

    # -- taking -------------------------------------------------------------------------------------------------------

    def _taken(self, spec: SessionSpec, quota: Quota) -> Union[RunningSandbox, Miss]:
        miss: Miss = "failed" if self.failure else "empty"
        while ready := self._pop():
            if not ready.is_usable:
                self._later.append(partial(ready.end, self._behind))
                miss = "ended"
                continue
            try:
                return self._handed_over(ready, spec, quota) or self._given_back(ready)
            except PreludeError:  # a kernel that just died, or a prelude that fails: a cold start reports it
                ready.end(self._behind)
                return "ended"
            except BaseException:
                ready.end(self._behind)
                raise
        return miss

    def _pop(self) -> ReadySandbox | None:
        with self._changed:
            return self._ready.popleft() if self._ready else None

    def _handed_over(self, ready: ReadySandbox, spec: SessionSpec, quota: Quota) -> RunningSandbox | None:
        if self._engine.guest(spec.work_dir).shares_files:
            after = ExitStack()
            self._later.append(after.close)
            if not take_place(ready.blank.path, spec.work_dir, after):
                return None
            self._later.append(ready.blank.forget)
        else:
            self._later.append(ready.blank.remove)  # in the guest it is a folder of its own, which a mirror fills
        ready.sandbox.adopt(spec, quota)
        return ready.sandbox

    def _given_back(self, ready: ReadySandbox) -> Miss:
        if os.listdir(ready.blank.path):  # something that could not be moved back
            ready.end(self._behind)
            return "folder"
        with self._changed:
            self._ready.appendleft(ready)
        return "folder"

    # -- making -------------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and not self._later and (seconds := self._idle_seconds()) > 0:
                    self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
                if self._is_closed:
                    return
                self._put_off_old()
                self._changed.wait_for(lambda: self._is_closed, SETTLE_SECONDS)
            self._do_later()
            if self._make_at() <= self._clock() and not self._is_closed:
                self._make_one()

    def _idle_seconds(self) -> float:
        """Return the seconds until there is work without a request."""
        old_at = [each.made_at + self.kind.limits.pool_max_age for each in self._ready]
        return min([self._make_at(), *old_at]) - self._clock()

    def _make_at(self) -> float:
        """Return the time to make the next one; infinity if there are enough, or no session asked lately."""
        is_wanted = self._asked_at + self.kind.limits.pool_max_age > self._clock() and self._asked_at >= self._failed_at
        if len(self._ready) >= self._size or not is_wanted:
            return float("inf")
        return self._failed_at + RETRY_SECONDS

    def _put_off_old(self) -> None:
        """Remove sandboxes that are too old."""
        oldest = self._clock() - self.kind.limits.pool_max_age
        while self._ready and self._ready[0].made_at <= oldest:
            self._later.append(partial(self._ready.popleft().end, self._behind))

    def _do_later(self) -> None:
        while self._later:
            self._later.popleft()()

    def _make_one(self) -> None:
        try:
            sandbox, blank = self._make(self._engine, self.kind)
        except (AgentToolsError, OSError) as exc:
            with self._changed:
                is_stopped = isinstance(self._engine, StoppableEngine) and self._engine.is_stopped
                if not (self.failure or self._is_closed or is_stopped):
                    why = str(exc).strip().rpartition("\n")[2]  # the last line of a traceback of the guest
                    _log.warning("No sandbox can be made ahead (%s); sessions start cold.", why)
                self.failure, self._failed_at = str(exc), self._clock()
                self._changed.notify_all()
            return
        with self._changed:
            self.failure = ""
            self._ready.append(ReadySandbox(sandbox, blank, self._clock()))
            self._changed.notify_all()
        if self._is_closed:
            self._end_ready()


# Renames the empty folder of a pre-warmed sandbox to a session's work_dir, or changes nothing.
#
# An existing folder is replaced only if nothing is lost: an empty folder, or a folder that this process made and staged
# files into, which are moved. A live sandbox's folder is never replaced.


MOST_ENTRIES = 64  # entries of a folder that are moved one by one
_LOCK = "pool.lock"
_KNOWN_ATTRIBUTES = {"security.selinux"}  # of every folder, where there are such


def take_place(blank: Path, work_dir: Path, after: ExitStack) -> bool:
    """Rename `blank` to its sibling `work_dir`; return False, without any change, if this is not possible.

    The claim on `blank` then covers `work_dir`: the same folder, in the same parent. `after` removes the replaced
    folder in the background, which takes milliseconds.

    Raises:
        EngineError: the private folder of this user cannot be used.
    """
    with ExitStack() as alone, ExitStack() as undo:
        try:
            alone.enter_context(_alone())
            if os.path.lexists(work_dir):
                new, old = (after.enter_context(open_folder(folder)) for folder in (blank, work_dir))
                if not _may_go(old, work_dir, new):
                    return False
                _move_in(old, new, undo)
            os.rename(blank, work_dir)
        except OSError:
            return False
        undo.pop_all()
    return True


def _may_go(old: int, work_dir: Path, new: int) -> bool:
    """Return whether a folder can be replaced without a loss.

    An empty one that was given counts, too: there a session starts in 0.07 s, and without this rule in 1.3 s.
    """
    if is_made_here(work_dir, identity(old)):
        return len(os.listdir(old)) <= MOST_ENTRIES
    found, ours = os.fstat(old), os.fstat(new)
    is_alike = os.getuid() == 0 or (found.st_uid, found.st_gid) == (ours.st_uid, ours.st_gid)
    attributes = os.listxattr(old) if IS_LINUX else ()
    is_plain = not os.listdir(old) and set(attributes) <= _KNOWN_ATTRIBUTES
    return is_alike and is_plain and not is_claimed(identity(old))


def _move_in(old: int, new: int, undo: ExitStack) -> None:
    """Move the staged files to the new folder and its guest, and give the new folder the old one's mode.

    Raises:
        OSError: a file could not be moved; `undo` moves the others back.
    """
    former, owner = os.fstat(old), os.fstat(new)
    if os.getuid() == 0:
        undo.callback(hand_over, old, (former.st_uid, former.st_gid))
        hand_over(old, (owner.st_uid, owner.st_gid))
    undo.callback(os.fchmod, new, stat.S_IMODE(owner.st_mode))
    os.fchmod(new, stat.S_IMODE(former.st_mode))
    for name in os.listdir(old):
        os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)
        undo.callback(_move_back, name, new, old)


def _move_back(name: str, new: int, old: int) -> None:
    with contextlib.suppress(OSError):  # then it stays in the blank folder, which is not removed
        os.rename(name, name, src_dir_fd=new, dst_dir_fd=old)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lock out other processes of this user that replace a folder at the same time. Raises OSError."""
    fd = os.open(private_base() / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# All pools of a process, by kind; they start the sandboxes of sessions.


MOST_KINDS = 8  # pools of one process; a further one replaces the least recently used


@dataclass(frozen=True)
class PoolState:
    """Statistics of all pools.

    Attributes:
        ready: sandboxes that are ready now.
        takes: sessions so far that asked for one, by 'hit' or the reason of a miss.
        failures: the errors.
        cold_starts: sandboxes so far that were started while a session waited.
        cold_start_seconds: the total time of these starts.
    """

    ready: int = 0
    takes: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    cold_starts: int = 0
    cold_start_seconds: float = 0.0


class Pools:
    """All pools of a process. Thread-safe. `behind` runs background work."""

    def __init__(self, engine: Engine, behind: Do, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._behind = behind
        self._clock = clock
        self._lock = threading.Lock()
        self._pools: list[Pool] = []
        self._former: Counter[str] = Counter()  # takes of pools that are closed
        self._cold_starts = 0
        self._cold_start_seconds = 0.0

    def start(self, engine: Engine, spec: SessionSpec, quota: Quota) -> RunningSandbox:
        """Return a pre-warmed sandbox, if the session asks for one and one is ready; else start one.

        Raises:
            InvalidParams, EngineError, KernelError: as for `RunningSandbox`.
        """
        pool = self._pool_of(spec) if spec.ahead.size else None
        sandbox = pool.take(spec, quota) if pool else None
        if sandbox is None:
            forget_made(spec.work_dir)
            sandbox = self._start_cold(engine, spec, quota)
        if pool:
            pool.keep(spec.ahead.size)
        return sandbox

    def _start_cold(self, engine: Engine, spec: SessionSpec, quota: Quota) -> RunningSandbox:
        started = self._clock()
        sandbox = RunningSandbox(engine, spec, quota)
        with self._lock:
            self._cold_starts += 1
            self._cold_start_seconds += self._clock() - started
        return sandbox

    def prepare(self, spec: SessionSpec, patience: float) -> int:
        """Begin to fill the pool for sessions like this one; wait up to `patience` seconds and return the number ready.

        Raises:
            EngineError: the engine cannot be reached.
        """
        pool = self._pool_of(spec)
        pool.keep(spec.ahead.size)
        return pool.wait(patience) if patience > 0 else pool.ready

    def state(self) -> PoolState:
        """Return the present statistics."""
        with self._lock:
            pools, takes = list(self._pools), Counter(self._former)
            cold = self._cold_starts, self._cold_start_seconds
        for pool in pools:
            takes.update(pool.takes)
        failures = tuple(pool.failure for pool in pools if pool.failure)
        return PoolState(sum(pool.ready for pool in pools), dict(takes), failures, *cold)

    def close(self, patience: float | None = None) -> None:
        """Remove the sandboxes that no session took; later sessions start pools anew. Waits as `Pool.close`."""
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            self._end(pool, patience)

    def _pool_of(self, spec: SessionSpec) -> Pool:
        kind = Kind.of(spec, self._engine.guest(spec.work_dir))
        with self._lock:
            for pool in self._pools:
                if pool.kind == kind:
                    return pool
            lost = min(self._pools, key=lambda each: each.asked_at) if len(self._pools) >= MOST_KINDS else None
            if lost:
                self._pools.remove(lost)
            pool = Pool(self._engine, kind, self._behind, self._clock)
            self._pools.append(pool)
        if lost:
            self._behind(lambda: self._end(lost))
        return pool

    def _end(self, pool: Pool, patience: float | None = None) -> None:
        pool.close(patience)
        with self._lock:
            self._former.update(pool.takes)
