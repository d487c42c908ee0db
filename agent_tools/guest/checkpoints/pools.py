"""The pools of threads and of processes that code has made.

Idle pools block no copy: there they start new workers, or are broken. An interrupt ends the pools to which its cell has
given work: such a pool gives the work of a killed worker to others, or starts new workers, also for the rest of a map.

The pools are those of multiprocessing, of concurrent.futures, and of loky, on which joblib and scikit-learn build. None
of them reports its state: the names here are those of their code, in CPython 3.11 to 3.14 and loky 3. Where code has
put other objects there, no pool is found, and its threads count like all others.
"""

import queue
import sys
import threading
from collections.abc import Iterator, Set
from types import FrameType
from typing import Any

BROKEN = "The processes of this pool were left behind when the kernel went back to a checkpoint. Make a new pool."
_LOKY = ("joblib.externals.loky", "loky")
_OF_THREADS = "concurrent.futures.thread"
_OF_PROCESSES = ("concurrent.futures.process", *(f"{loky}.process_executor" for loky in _LOKY))
Jobs = frozenset[tuple[int, int]]
"""A pool and a job of it, by their ids."""


def idle_pools() -> tuple[set[threading.Thread], set[int]]:
    """Return the threads, and the pids of the processes, of all idle pools."""
    found: set[threading.Thread] = set()
    pids: set[int] = set()
    try:
        frames = sys._current_frames()
        for thread, pool in _of_threads():
            if pool._work_queue.empty() and _waits(frames.get(thread.ident or 0)):
                found.add(thread)
        for manager, pool in _of_processes():
            feeder = pool._call_queue._thread
            if not pool._pending_work_items and not pool._call_queue._buffer:
                found.update((manager, feeder) if feeder else (manager,))
                pids.update(pool._processes)
    except Exception:  # noqa: BLE001  (of objects that code has put there)
        return set(), set()
    return found, pids


def living_pools() -> list[Any]:
    """Return all pools. A fork forgets pools of threads, so call this before a fork."""
    try:
        return list({pool for _, pool in (*_of_threads(), *_of_processes())})
    except Exception:  # noqa: BLE001  (of objects that code has put there)
        return []


def restart_pools(pools: list[Any]) -> None:
    """Let the pools of a copy start new workers, or report that they are broken: the workers belong to the kernel."""
    try:
        for loky in _LOKY:
            reusable: Any = sys.modules.get(f"{loky}.reusable_executor")
            if reusable:
                reusable._executor = None  # the next one who asks gets another
        for pool in pools:
            if hasattr(pool, "_work_queue"):
                pool._threads.clear()
                pool._idle_semaphore = threading.Semaphore(0)
                pool._work_queue = queue.SimpleQueue()
            elif hasattr(pool, "_flags"):  # loky's
                pool._flags.broken = sys.modules["concurrent.futures.process"].BrokenProcessPool(BROKEN)
            else:
                pool._broken = BROKEN
    except Exception:  # noqa: BLE001  (of objects that code has put there)
        return


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


def _of_threads() -> Iterator[tuple[threading.Thread, Any]]:
    """Yield the threads of pools of threads, with their pools."""
    if module := sys.modules.get(_OF_THREADS):
        for thread in list(module._threads_queues):
            if pool := thread._args[0]():
                yield thread, pool


def _of_processes() -> Iterator[tuple[threading.Thread, Any]]:
    """Yield the threads that manage pools of processes, with these pools."""
    for module in filter(None, map(sys.modules.get, _OF_PROCESSES)):
        for thread in list(module._threads_wakeups):
            if pool := thread.executor_reference():
                yield thread, pool


def _waits(frame: FrameType | None) -> bool:
    """Return whether a thread of a pool is between two pieces of work."""
    if frame is None or frame.f_code.co_name != "_worker":
        return False
    return not frame.f_locals.get("work_item")


def _found() -> list[tuple[Any, list[int], set[int]]]:
    """Return all pools with the numbers of their unfinished jobs, and the pids of their workers."""
    if "multiprocessing" not in sys.modules:
        return []
    try:
        of_multiprocessing = [
            (pool, list(pool._cache), {worker.pid for worker in pool._pool if hasattr(worker, "pid")})
            for pool in _of_multiprocessing()
        ]
        executors = {id(pool): pool for _, pool in _of_processes()}.values()
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
