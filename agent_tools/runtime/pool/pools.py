"""All pools of a process, by key; they start the sandboxes of sessions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent_tools.engines.engine import Engine
from agent_tools.machine.background import Do
from agent_tools.runtime.files.new_work_dirs import forget_made
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.pool.pool import Pool
from agent_tools.runtime.pool.pool_key import PoolKey
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec

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
        started = self._clock()
        sandbox = LiveSandbox(engine, spec, quota)
        with self._lock:
            self._cold_starts += 1
            self._cold_start_seconds += self._clock() - started
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
        key = PoolKey.of(spec, self._engine.guest(spec.work_dir))
        with self._lock:
            for pool in self._pools:
                if pool.key == key:
                    return pool
            lost = min(self._pools, key=lambda each: each.asked_at) if len(self._pools) >= MOST_KINDS else None
            if lost:
                self._pools.remove(lost)
            pool = Pool(self._engine, key, self._behind, self._clock)
            self._pools.append(pool)
        if lost:
            self._behind(lambda: self._end(lost))
        return pool

    def _end(self, pool: Pool, timeout: float | None = None) -> None:
        pool.close(timeout)
        with self._lock:
            self._former.update(pool.takes)
