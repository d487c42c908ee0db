"""The work that an interrupted cell has given to pools of processes.

A pool gives the work of a killed worker to others, or starts new workers, also for the rest of a map. None tells of its
work: the names here are those of CPython 3.11 to 3.14 and of loky 3. Where code has put other objects there, no pool is
found.
"""

import sys
from collections.abc import Iterator, Set
from typing import Any

from ..checkpoints.idle_pools import pools_of_processes

Jobs = frozenset[tuple[int, int]]
"""A pool and a job of it, by their ids."""


def jobs() -> Jobs:
    """Return the unfinished jobs of all pools."""
    return frozenset((id(pool), job) for pool, work, _ in _found() for job in work)


def end(known: Jobs, killed: Set[int]) -> set[int]:
    """End the pools that have other jobs than these, or workers that are killed; return the pids of their workers.

    A pool whose workers were killed could wait for ever for a lock of theirs, in its own end.
    """
    ended: set[int] = set()
    for pool, work, workers in _found():
        if not killed.isdisjoint(workers) or any((id(pool), job) not in known for job in work):
            ended |= workers
            if hasattr(pool, "_terminate"):
                _end(pool)
    return ended


def _found() -> list[tuple[Any, list[int], set[int]]]:
    """Return all pools with the numbers of their unfinished jobs, and the pids of their workers."""
    if "multiprocessing" not in sys.modules:
        return []
    try:
        of_multiprocessing = [
            (pool, list(pool._cache), {worker.pid for worker in pool._pool if hasattr(worker, "pid")})
            for pool in _of_multiprocessing()
        ]
        executors = {id(pool): pool for _, pool in pools_of_processes()}.values()
        return of_multiprocessing + [(pool, list(pool._pending_work_items), set(pool._processes)) for pool in executors]
    except Exception:  # noqa: BLE001  (of objects that code has put there)
        return []


def _of_multiprocessing() -> Iterator[Any]:
    """Yield the pools of multiprocessing, of threads as well: each has asked to be ended at the exit."""
    if module := sys.modules.get("multiprocessing.pool"):
        for finalizer in list(sys.modules["multiprocessing.util"]._finalizer_registry.values()):
            pool = finalizer._weakref and finalizer._weakref()
            if isinstance(pool, module.Pool):
                yield pool


def _end(pool: Any) -> None:
    """Let a pool of multiprocessing start nothing any more, without waiting for its workers, as `terminate` would."""
    terminate = sys.modules["multiprocessing.pool"].TERMINATE
    pool._terminate.cancel()
    for thread in (pool, pool._worker_handler, pool._task_handler, pool._result_handler):
        thread._state = terminate
    pool._cache.clear()
    pool._change_notifier.put(None)
