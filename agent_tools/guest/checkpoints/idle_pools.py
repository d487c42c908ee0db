"""Idle pools of threads and of processes, which block no copy: there they start new workers, or are broken.

These are the pools of concurrent.futures, and of loky, on which joblib and scikit-learn build. None of them reports
its state: the names here are those of their code, in CPython 3.11 to 3.14 and loky 3. Where code has put other
objects there, no pool is found, and its threads count like all others.
"""

import queue
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

BROKEN = "The processes of this pool were left behind when the kernel went back to a checkpoint. Make a new pool."
_LOKY = ("joblib.externals.loky", "loky")
_OF_THREADS = "concurrent.futures.thread"
_OF_PROCESSES = ("concurrent.futures.process", *(f"{loky}.process_executor" for loky in _LOKY))


def idle_pools() -> tuple[set[threading.Thread], set[int]]:
    """Return the threads, and the pids of the processes, of all idle pools."""
    found: set[threading.Thread] = set()
    pids: set[int] = set()
    try:
        frames = sys._current_frames()
        for thread, pool in _of_threads():
            if pool._work_queue.empty() and _waits(frames.get(thread.ident or 0)):
                found.add(thread)
        for manager, pool in pools_of_processes():
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
        return list({pool for _, pool in (*_of_threads(), *pools_of_processes())})
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


def _of_threads() -> Iterator[tuple[threading.Thread, Any]]:
    """Yield the threads of pools of threads, with their pools."""
    if module := sys.modules.get(_OF_THREADS):
        for thread in list(module._threads_queues):
            if pool := thread._args[0]():
                yield thread, pool


def pools_of_processes() -> Iterator[tuple[threading.Thread, Any]]:
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
