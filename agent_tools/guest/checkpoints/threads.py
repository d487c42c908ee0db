"""The threads and child processes of the code, which a fork would lose."""

import array
import asyncio
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

OURS = 2  # threads of a kernel: the main one and the watcher
SAFE = frozenset(("jemalloc_bg_thd",))  # by their names: their library makes them anew in a fork
_RENEWING = ("/libarrow.so", "/pypocketfft.")  # so do these, of Arrow and scipy.fft, whose threads have no names
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "")  # the system call in which idle threads are
_STACK = 4096  # bytes of an idle thread's stack in which its library is found; it takes about 600
PATIENCE = 0.1  # seconds for a thread that was told to end
OMP_PAUSE_HARD = 2  # omp_pause_resource_t, OpenMP 5.0: end the threads, which come again when they are needed
_OPENMP = ("libgomp", "libomp", "libiomp5")
_TRACKER = "multiprocessing.resource_tracker"  # starts with shared memory, and lives as long as who has started it
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


def unknown() -> frozenset[str]:
    """Return the threads that neither Python has started, nor a library that makes its idle ones anew in a fork."""
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
    """Return those of these threads of a process that have not ended."""
    return tasks.intersection(os.listdir(_TASKS.format(pid))) if tasks else tasks


def _code_of(libraries: tuple[str, ...]) -> Iterator[range]:
    """Yield the addresses of what is loaded and can be executed of some libraries. Format: proc_pid_maps(5)."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if any(name in line for name in libraries):
                addresses, rights, *_ = line.split(maxsplit=2)
                if "x" in rights:
                    start, end = addresses.split("-")
                    yield range(int(start, 16), int(end, 16))


def _waits_in(task: str, code: list[range]) -> bool:
    """Return whether a thread waits for another one to wake it, and came there from this code.

    Its stack says so, which begins where the kernel says. Format: proc_pid_syscall(5).
    """
    try:
        with open(f"{_TASKS.format('self')}/{task}/syscall") as file:
            number, *_, stack, _ = file.read().split()
        if number != _FUTEX:
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
    """Return whether child processes live but multiprocessing's own, which only listens.

    One that has ended and was not waited for does not live.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    try:
        tasks = os.listdir(_TASKS.format("self"))
        return any(_lives(pid) and not _is_tracker(pid) for task in tasks for pid in _children(task))
    except OSError:  # an operating system that does not tell: there may be some
        return True


def forget_tracker() -> None:
    """Let multiprocessing start its tracker of resources anew: in a copy the one of the kernel is out of reach."""
    try:
        tracker = sys.modules[_TRACKER]._resource_tracker
        tracker._fd = tracker._pid = None
    except Exception:  # noqa: BLE001  (there is none, or what code has put there)
        return


def _is_tracker(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return f"from {_TRACKER} import main".encode() in file.read()
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
