"""The threads and child processes of the code, which a fork would lose."""

import asyncio
import contextlib
import ctypes
import os
import sys
import threading
from typing import Any

OURS = 2  # threads of a kernel: the main one and the watcher
SAFE = frozenset(("jemalloc_bg_thd",))  # by their names: their library makes them anew in a fork
PATIENCE = 0.1  # seconds for a thread that was told to end
OMP_PAUSE_HARD = 2  # omp_pause_resource_t, OpenMP 5.0: end the threads, which come again when they are needed
_OPENMP = ("libgomp", "libomp", "libiomp5")
_TASKS = "/proc/{}/task"


def code_has_threads() -> bool:
    """Return whether threads live that Python code has started."""
    return threading.active_count() > OURS


def end_waiting() -> None:
    """End Python's threads that wait for work and come again with it: tqdm's monitor, and those of `asyncio.to_thread`.

    They are found by their libraries' own names for them; where code has put something else there, they stay.
    """
    if not code_has_threads():
        return
    try:
        if tqdm := sys.modules.get("tqdm.std"):
            _end_monitor(tqdm.tqdm)
        _end_executor(asyncio.get_event_loop())
    except Exception:  # noqa: BLE001  (of whatever code has put there)
        return


def _end_monitor(progress: Any) -> None:
    monitor = progress.monitor
    if isinstance(monitor, threading.Thread):
        monitor.was_killed.set()  # type: ignore[attr-defined]
        monitor.join(PATIENCE)
        progress.monitor = None


def _end_executor(loop: Any) -> None:
    executor = loop._default_executor
    is_idle = executor and executor._work_queue.empty() and executor._idle_semaphore._value >= len(executor._threads)
    if is_idle:
        executor.shutdown(wait=True)
        loop._default_executor = None


def count(pid: int | str = "self") -> int:
    """Return how many threads a process has, those aside that need not be told of a fork."""
    return sum(_name(pid, task) not in SAFE for task in os.listdir(_TASKS.format(pid)))


def end_idle() -> None:
    """End the idle threads of OpenMP. OpenBLAS ends its own at each fork."""
    if count() <= OURS:
        return
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if any(name in line for name in _OPENMP)}
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(OMP_PAUSE_HARD)


def code_has_children() -> bool:
    """Return whether child processes live; one that has ended and was not waited for does not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    try:
        return any(_lives(pid) for task in os.listdir(_TASKS.format("self")) for pid in _children(task))
    except OSError:  # an operating system that does not tell: there may be some
        return True


def _children(task: str) -> list[str]:
    with open(f"/proc/self/task/{task}/children") as file:
        return file.read().split()


def _lives(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    return False


def _name(pid: int | str, task: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/comm") as file:
        return file.read().strip()
    return ""
