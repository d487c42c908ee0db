"""Threads and child processes of the code that block a copy of the kernel: a fork would lose them."""

import array
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ..processes import command_line, has_children
from .pools import idle_pools

OURS = 2  # threads of a kernel: the main one and the watcher
SAFE = frozenset(("jemalloc_bg_thd",))  # by their names: their library makes them anew in a fork
_RENEWING = ("/libarrow.so", "/pypocketfft.")  # so do these, of Arrow and scipy.fft, whose threads have no names
_FUTEX, _READ = {"x86_64": ("202", "0"), "aarch64": ("98", "63")}.get(os.uname().machine, ("", ""))
"""The system calls in which idle threads are: they wait for a lock, or to read the number of a signal from a pipe."""
_SIGNAL_BYTES = "0x8"  # that Arrow's thread for signals, of its CSV reader, reads
_STACK = 4096  # bytes of an idle thread's stack in which its library is found; it takes about 600
END_TIMEOUT = 0.1  # seconds for a thread that was asked to end
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


def threads_of_code() -> set[threading.Thread]:
    """Return the threads of Python code that a copy would wait for."""
    if threading.active_count() <= OURS:
        return set()
    busy = set(threading.enumerate()) - idle_pools()[0] - {threading.main_thread()}
    return {thread for thread in busy if not isinstance(thread, OurThread) and not _is_monitor(thread)}


class OurThread(threading.Thread):
    """A thread of the kernel itself, which a fork starts again."""


def _is_monitor(thread: threading.Thread) -> bool:
    tqdm = sys.modules.get("tqdm._monitor")
    return isinstance(thread, getattr(tqdm, "TMonitor", ()))


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
    monitor.join(END_TIMEOUT)
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
        return bool(children_of_code())
    except OSError:  # an operating system that does not tell: there may be some
        return True


def children_of_code() -> set[int]:
    """Return the child processes that a copy would wait for.

    Raises:
        OSError: the operating system does not tell.
    """
    if not has_children():
        return set()
    pids = {pid for task in os.listdir(_TASKS.format("self")) for pid in _children(task)}
    return {int(pid) for pid in pids if lives(pid) and not is_tracker(int(pid))} - idle_pools()[1]


def forget_trackers() -> None:
    """Forget the trackers of resources, so that a copy starts its own: it cannot reach those of the kernel."""
    for tracker in filter(None, map(sys.modules.get, _TRACKERS)):
        with contextlib.suppress(AttributeError):  # of what code has put there
            tracker._resource_tracker._fd = tracker._resource_tracker._pid = None


def is_tracker(pid: int) -> bool:
    """Return whether a process tracks the resources of multiprocessing, or of loky."""
    command = command_line(pid)
    return any(f"from {tracker} import main".encode() in command for tracker in _TRACKERS)


def _children(task: str) -> list[str]:
    with open(f"/proc/self/task/{task}/children") as file:
        return file.read().split()


def lives(pid: str) -> bool:
    """Return whether a process has not ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    return False


def _name(task: str) -> str:
    with contextlib.suppress(OSError), open(f"{_TASKS.format('self')}/{task}/comm") as file:
        return file.read().strip()
    return ""
