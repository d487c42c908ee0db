"""Threads and child processes of the code that block a copy of the kernel: a fork would lose them."""

import array
import contextlib
import ctypes
import os
import queue
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

OURS = 2  # threads of a kernel: the main one and the watcher
SAFE = frozenset(("jemalloc_bg_thd",))  # by their names: their library makes them anew in a fork
_RENEWING = ("/libarrow.so", "/pypocketfft.")  # so do these, of Arrow and scipy.fft, whose threads have no names
_FUTEX, _READ = {"x86_64": ("202", "0"), "aarch64": ("98", "63")}.get(os.uname().machine, ("", ""))
"""The system calls in which idle threads are: they wait for a lock, or to read the number of a signal from a pipe."""
_SIGNAL_BYTES = "0x8"  # that Arrow's thread for signals, of its CSV reader, reads
_STACK = 4096  # bytes of an idle thread's stack in which its library is found; it takes about 600
PATIENCE = 0.1  # seconds for a thread that was told to end
OMP_PAUSE_HARD = 2  # omp_pause_resource_t, OpenMP 5.0: end the threads, which come again when they are needed
_OPENMP = ("libgomp", "libomp", "libiomp5")
_TRACKERS = (  # start with shared memory and with workers, and live as long as who has started them
    "multiprocessing.resource_tracker",
    "joblib.externals.loky.backend.resource_tracker",
    "loky.backend.resource_tracker",
)
_TASKS = "/proc/{}/task"


def code_has_threads() -> bool:
    """Return whether threads of Python code live, other than those of idle pools."""
    return threading.active_count() > OURS and len(set(threading.enumerate()) - idle_pools()[0]) > OURS


def end_waiting() -> None:
    """End idle threads that start again when needed: tqdm's monitors, one for each class of bars.

    They are found by the library's own names; where code has put other objects there, they stay.
    """
    try:
        if code_has_threads() and (tqdm := sys.modules.get("tqdm._monitor")):
            for thread in threading.enumerate():
                if isinstance(thread, tqdm.TMonitor):
                    _end_monitor(thread)
    except Exception:  # noqa: BLE001  (of objects that code has put there)
        return


def _end_monitor(monitor: Any) -> None:
    monitor.was_killed.set()
    monitor.join(PATIENCE)
    monitor.tqdm_cls.monitor = None


def unknown() -> frozenset[str]:
    """Return the native threads, except idle ones of libraries that start them again in a fork."""
    ours = {
        str(os.getpid()),
        *(str(thread.native_id) for thread in threading.enumerate()),
    }  # a fork may not know its own
    tasks = {task for task in os.listdir(_TASKS.format("self")) if task not in ours and _name(task) not in SAFE}
    if not tasks:
        return frozenset()
    code = list(_code_of(_RENEWING))
    return frozenset(task for task in tasks if not (code and _waits_in(task, code)))


def living(tasks: frozenset[str], pid: int) -> frozenset[str]:
    """Return the threads of a process that have not ended, of a set."""
    return tasks.intersection(os.listdir(_TASKS.format(pid))) if tasks else tasks


def _code_of(libraries: tuple[str, ...]) -> Iterator[range]:
    """Yield the address ranges of executable code of some libraries. Format: proc_pid_maps(5)."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if any(name in line for name in libraries):
                addresses, rights, *_ = line.split(maxsplit=2)
                if "x" in rights:
                    start, end = addresses.split("-")
                    yield range(int(start, 16), int(end, 16))


def _waits_in(task: str, code: list[range]) -> bool:
    """Return whether a thread waits for another one, or for a signal, and came there from this code.

    Its stack says so, which begins where the kernel says. Format: proc_pid_syscall(5).
    """
    try:
        with open(f"{_TASKS.format('self')}/{task}/syscall") as file:
            number, _, _, size, *_, stack, _ = file.read().split()
        if number != _FUTEX and (number, size) != (_READ, _SIGNAL_BYTES):
            return False
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # a stack that is gone by now is an error here
            words = array.array("Q", os.pread(memory.fileno(), _STACK, int(stack, 16)))
    except (OSError, ValueError):  # it runs, or has ended; or this operating system does not tell
        return False
    return any(word in addresses for word in words for addresses in code)


def end_idle() -> None:
    """End the idle threads of OpenMP. OpenBLAS ends its own at each fork."""
    if len(os.listdir(_TASKS.format("self"))) <= OURS:
        return
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if any(name in line for name in _OPENMP)}
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(OMP_PAUSE_HARD)


def code_has_children() -> bool:
    """Return whether child processes live, other than those of idle pools and trackers of their resources.

    Zombies do not count.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    try:
        waiting = {str(pid) for pid in idle_pools()[1]}
        pids = {pid for task in os.listdir(_TASKS.format("self")) for pid in _children(task)}
        return any(_lives(pid) and not _is_tracker(pid) for pid in pids - waiting)
    except OSError:  # an operating system that does not tell: there may be some
        return True


def forget_trackers() -> None:
    """Forget the trackers of resources, so that a copy starts its own: it cannot reach those of the kernel."""
    for tracker in filter(None, map(sys.modules.get, _TRACKERS)):
        with contextlib.suppress(AttributeError):  # of what code has put there
            tracker._resource_tracker._fd = tracker._resource_tracker._pid = None


def _is_tracker(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read()
        return any(f"from {tracker} import main".encode() in command for tracker in _TRACKERS)
    return False


def _children(task: str) -> list[str]:
    with open(f"/proc/self/task/{task}/children") as file:
        return file.read().split()


def _lives(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    return False


def _name(task: str) -> str:
    with contextlib.suppress(OSError), open(f"{_TASKS.format('self')}/{task}/comm") as file:
        return file.read().strip()
    return ""


# Idle pools of threads and of processes: they block no copy, in which they start new workers or report that they are
# broken.
#
# These are the pools of concurrent.futures, and of loky, on which joblib and scikit-learn build. None of them reports
# its state: the names here are those of their code, in CPython 3.10 to 3.14 and loky 3. Where code has put other
# objects there, no pool is found, and its threads count like all others.


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
