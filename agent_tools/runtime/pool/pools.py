"""All pools of a process, by key; they start the sandboxes of sessions."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_tools.engines.engine import Engine
from agent_tools.engines.guest import Guest
from agent_tools.limits import Limits
from agent_tools.machine.background import Do
from agent_tools.runtime.files.new_work_dirs import forget_made
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.pool.pool import Pool
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import Ahead, SessionSpec

MOST_KINDS = 8  # pools of one process; a further one replaces the least recently used
_PRELOAD = "AGENT_TOOLS_PRELOAD"  # only guest/preload.py reads it
_OF_THE_FOLDER = ("max_work_dir_bytes", "max_work_dir_entries", "min_disk_free")  # enforced by the host
_OF_EACH_USE = ("max_variables_bytes",)  # sent to the sandbox with the order


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

    def __init__(self, engine: Engine, behind: Do) -> None:
        self._engine = engine
        self._behind = behind
        self._lock = threading.Lock()
        self._pools: list[Pool] = []
        self._former: Counter[str] = Counter()  # takes of pools that are closed
        self._cold_starts = 0
        self._cold_start_seconds = 0.0

    def start(self, engine: Engine, spec: SessionSpec, quota: Quota) -> LiveSandbox:
        """Return a pre-warmed sandbox, if the session asks for one and one is ready; else start one.

        Raises:
            InvalidParams, EngineError, KernelError: as for `LiveSandbox`.
        """
        pool = self._pool_of(spec) if spec.ahead.size else None
        sandbox = pool.take_sandbox(spec, quota) if pool else None
        if sandbox is None:
            forget_made(spec.work_dir)
            sandbox = self._start_cold(engine, spec, quota)
        if pool:
            pool.keep(spec.ahead.size)
        return sandbox

    def _start_cold(self, engine: Engine, spec: SessionSpec, quota: Quota) -> LiveSandbox:
        started = time.monotonic()
        sandbox = LiveSandbox(engine, spec, quota)
        with self._lock:
            self._cold_starts += 1
            self._cold_start_seconds += time.monotonic() - started
        return sandbox

    def prepare(self, spec: SessionSpec, timeout: float) -> int:
        """Begin to fill the pool for sessions like this one; wait up to `timeout` seconds and return the number ready.

        Raises:
            EngineError: the engine cannot be reached.
        """
        pool = self._pool_of(spec)
        pool.keep(spec.ahead.size)
        return pool.wait(timeout) if timeout > 0 else pool.ready

    def state(self) -> PoolState:
        """Return the present statistics."""
        with self._lock:
            pools, takes = list(self._pools), Counter(self._former)
            cold = self._cold_starts, self._cold_start_seconds
        for pool in pools:
            takes.update(pool.takes)
        failures = tuple(pool.failure for pool in pools if pool.failure)
        return PoolState(sum(pool.ready for pool in pools), dict(takes), failures, *cold)

    def close(self, timeout: float | None = None) -> None:
        """Remove the sandboxes that no session took; later sessions start pools anew. Waits as `Pool.close`."""
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            self._end(pool, timeout)

    def _pool_of(self, spec: SessionSpec) -> Pool:
        key = _pool_key(spec, self._engine.guest(spec.work_dir))
        with self._lock:
            for pool in self._pools:
                if pool.key == key:
                    return pool
            lost = min(self._pools, key=lambda each: each.asked_at) if len(self._pools) >= MOST_KINDS else None
            if lost:
                self._pools.remove(lost)
            pool = Pool(self._engine, key, self._behind)
            self._pools.append(pool)
        if lost:
            self._behind(lambda: self._end(lost))
        return pool

    def _end(self, pool: Pool, timeout: float | None = None) -> None:
        pool.close(timeout)
        with self._lock:
            self._former.update(pool.takes)


def _pool_key(spec: SessionSpec, guest: Guest) -> SessionSpec:
    """Return the key of the pool that can serve a session: all options that are fixed when a sandbox is made.

    It leaves out limits that the host enforces or sends with an order, and the location of a copied work_dir.
    """
    shares, usual = guest.shares_files, Limits()
    free = {name: getattr(usual, name) for name in (*_OF_EACH_USE, *(_OF_THE_FOLDER if shares else ()))}
    isolation, preload = spec.telling_isolation, spec.ahead.preload
    if preload:
        isolation = replace(isolation, env={**isolation.env, _PRELOAD: ",".join(preload)})
    return replace(
        spec,
        work_dir=spec.work_dir.parent if shares else Path(tempfile.gettempdir()),
        isolation=isolation,
        limits=replace(spec.limits, **free),
        host_calls=None,
        prelude="",
        ahead=Ahead(),
        is_blank=True,
        idle_stop=0.0,
    )
