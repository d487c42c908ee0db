"""Takes checkpoints in the kernel, between two requests.

A request that comes while a copy is taken waits for it. So a copy is taken in a pause between requests. Where requests
follow one another without one, the first cells have their copies at once, so that a crash or `undo` costs one of them;
after these there is a copy once a second. Once the host has gone back or has asked for a copy, each request has one.
"""

import array
import contextlib
import ctypes
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol

from ..wire.sockets import await_input
from . import oom_priority
from .datagrams import AWAKE, CHILDREN, MAX_BYTES, MEMORY, THREADS, TIME
from .frozen import Line, Woken, freeze

# Threads and child processes of the code that block a copy of the kernel: a fork would lose them.

OURS = 2  # threads of a kernel: the main one and the watcher
SAFE = frozenset(("jemalloc_bg_thd",))  # by their names: their library makes them anew in a fork
_RENEWING = ("/libarrow.so", "/pypocketfft.")  # so do these, of Arrow and scipy.fft, whose threads have no names
_FUTEX, _READ = {"x86_64": ("202", "0"), "aarch64": ("98", "63")}.get(os.uname().machine, ("", ""))
"""The system calls in which idle threads are: they wait for a lock, or to read the number of a signal from a pipe."""
_SIGNAL_BYTES = "0x8"  # that Arrow's thread for signals, of its CSV reader, reads
_STACK = 4096  # bytes of an idle thread's stack in which its library is found; it takes about 600
PATIENCE = 0.1  # seconds for a thread that was asked to end
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
    return {int(pid) for pid in pids if lives(pid) and not is_tracker(pid)} - idle_pools()[1]


def has_children() -> bool:
    """Return whether this process has any child, also one that has ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def forget_trackers() -> None:
    """Forget the trackers of resources, so that a copy starts its own: it cannot reach those of the kernel."""
    for tracker in filter(None, map(sys.modules.get, _TRACKERS)):
        with contextlib.suppress(AttributeError):  # of what code has put there
            tracker._resource_tracker._fd = tracker._resource_tracker._pid = None


def is_tracker(pid: str) -> bool:
    """Return whether a process tracks the resources of multiprocessing, or of loky."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read()
        return any(f"from {tracker} import main".encode() in command for tracker in _TRACKERS)
    return False


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


PAUSE = 0.05  # seconds without a request
LATEST = 1.0  # seconds of requests without a copy, after which the next copy does not wait for a pause
FIRST = 8  # cells after a pause of PAUSE that have their copies at once
LINE_SECONDS = 1.0  # for which the line of the next copy is waited for
_UNSAFE = 3  # exit code of the fork that found threads beside the kernel's own


class Pace:
    """Decides how long a copy waits for a pause between requests."""

    def __init__(self, *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        """Whether no copy waits."""
        self._ended = time.monotonic()
        self._in_a_row = 0  # cells since the last pause
        self._is_cell = False
        self._unsaved = 0.0  # when the first request began that no copy knows of; 0.0: there is none

    def begin(self) -> None:
        """Note that a request begins."""
        now = time.monotonic()
        if now >= self._ended + PAUSE:
            self._in_a_row = 0
        self._unsaved = self._unsaved or now

    def wait(self, seconds: float) -> None:
        """Note a time in which the next request may have waited for a copy: it belongs to no pause."""
        self._ended += seconds

    def end(self, *, is_cell: bool) -> None:
        """Note that a request has ended."""
        self._ended, self._is_cell = time.monotonic(), is_cell
        self._in_a_row += is_cell

    def take(self) -> None:
        """Note that a copy is taken."""
        self._unsaved = 0.0

    def patience(self) -> float:
        """Return the seconds until a copy may be taken."""
        now = time.monotonic()
        is_late = self._unsaved and now - self._unsaved >= LATEST
        if self.is_exact or is_late or (self._is_cell and self._in_a_row <= FIRST):
            return 0.0
        return max(0.0, self._ended + PAUSE - now)


class Shared(Protocol):
    """The writer of replies, shared with the kernel's other thread by a lock, which must be free at a fork."""

    lock: Any
    is_closed: bool


class Checkpoints:
    """Takes a copy after each request that needs one, at its pace."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._keeper: socket.socket | None = None
        self._pace = Pace()
        self.run = 0
        """The number of the latest request after which a copy was wanted."""
        self._is_due = False
        self._maker = 0  # the pid of the child that forks the copy, until it has ended
        self._small = oom_priority.written_by() + oom_priority.small_size()
        self._is_large = False
        self._oom_kills = 0  # when the latest copy was taken
        self._is_lost = False  # whether the memory limit may have ended it since
        self._told = ""  # why there is no later copy
        self._unsure: frozenset[str] = frozenset()  # threads that may end at a fork
        self._unsafe: frozenset[str] = frozenset()  # those that have not

    def connect(self, descriptor: int) -> None:
        """Use this descriptor for messages to PID 1 from now on, and report that this process is the kernel."""
        self._keeper, self._told = socket.socket(fileno=os.dup(descriptor)), ""
        self._say(AWAKE)

    def note(self, run: object, is_urgent: object = False, *, is_cell: bool) -> None:
        """Request a copy after the request with this number, at once if it is urgent; none without a number."""
        if isinstance(run, int) and run > 0:
            self.run, self._is_due = run, True
            self._pace.end(is_cell=is_cell)
            self._is_lost = self._is_large and oom_priority.oom_kills() > self._oom_kills
            if is_urgent is True:
                self._pace.is_exact = True

    def patience(self) -> float | None:
        """Return the seconds until the next copy; None if none is needed.

        None is after a request whose reply cannot have arrived: the host will say that it was undone.
        """
        if not (self._is_due and self._keeper) or self._shared.is_closed:
            return None
        return 0.0 if self._is_lost else self._pace.patience()

    def begin(self, is_urgent: object = False) -> None:
        """Record that a request has come, perhaps before a copy could be taken; an urgent request requires it.

        Raises:
            Woken: as for `take`.
        """
        if is_urgent is True:
            self._pace.is_exact = True
            if self.patience() is not None:
                self.take()
                self.settle()
        if self._is_due:
            self._skip(TIME)
        self._pace.begin()
        if self._is_large:
            self._say(b"running")

    def take(self) -> None:
        """Fork a copy, unless threads or child processes would be lost.

        Raises:
            Woken: in the process that is the kernel from now on.
        """
        began = time.monotonic()
        self._is_due = False
        self._pace.take()
        try:
            if reason := self._blocker():
                self._skip(reason)
            else:
                self._is_large = oom_priority.written_by() > self._small
                self._oom_kills = oom_priority.oom_kills() if self._is_large else 0
                self._fork()
        except TimeoutError:  # PID 1 has sent no line yet
            self._skip(TIME)
        except OSError:  # no room for a process
            self._skip(MEMORY)
        self._pace.wait(time.monotonic() - began)

    def settle(self) -> None:
        """Wait until the copy is ready and none of the code's children: before anything else runs."""
        if not self._maker:
            return
        maker, self._maker, began = self._maker, 0, time.monotonic()
        try:
            _, status = os.waitpid(maker, 0)
        except ChildProcessError:  # native code has waited for it
            return
        self._pace.wait(time.monotonic() - began)
        if os.waitstatus_to_exitcode(status) == _UNSAFE:
            self._unsafe = living(self._unsure, os.getpid())
            self._skip(THREADS)

    def _blocker(self) -> str:
        end_waiting()
        if code_has_threads():
            return THREADS
        if code_has_children():
            return CHILDREN
        end_idle()
        self._unsure = unknown()
        return THREADS if self._unsafe & self._unsure else ""

    def _line(self) -> Line:
        """Return the line for the next copy, which PID 1 sends after each one.

        Raises:
            TimeoutError: it has not come.
            OSError: it will not come.
        """
        assert self._keeper
        if not await_input(self._keeper.fileno(), LINE_SECONDS):
            raise TimeoutError
        number, descriptors, _, _ = socket.recv_fds(self._keeper, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise OSError("PID 1 has hung up")
        return int(number), socket.socket(fileno=descriptors[0])

    def _fork(self) -> None:
        number, line = self._line()
        with line, self._unhandled_children():
            self._fork_copy(number, line)

    @contextlib.contextmanager
    def _unhandled_children(self) -> Iterator[None]:
        """Hide the end of the forking child from code that handles, or ignores, SIGCHLD."""
        handler = signal.getsignal(signal.SIGCHLD)
        if handler in (signal.SIG_DFL, None):
            yield
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
            self.settle()
        finally:
            signal.signal(signal.SIGCHLD, handler)

    def _fork_copy(self, number: int, line: socket.socket) -> None:
        assert self._keeper
        kernel, seeded, left = os.getpid(), random.getstate(), living_pools()  # a fork is seeded anew
        with self._shared.lock:
            self._maker = os.fork()
        self._told = ""
        if self._maker:
            return
        try:
            self._maker = 0
            if living(self._unsure, kernel):
                os._exit(_UNSAFE)
            ready, done = os.pipe()
            if os.fork():
                os.close(done)
                os.read(ready, 1)
                os._exit(0)
            os.close(ready)
        except BaseException:  # noqa: BLE001  (this process is not the kernel)
            os._exit(1)
        try:
            freeze(self._keeper, self.run, (number, line), done)
        except Woken:
            random.setstate(seeded)
            forget_trackers()
            restart_pools(left)
            self._pace = Pace(is_exact=True)
            raise

    def _skip(self, reason: str) -> None:
        self._is_due = False
        if reason != self._told:  # else PID 1 knows
            self._told = reason
            self._say(b"skipped %s" % reason.encode())

    def _say(self, word: bytes) -> None:
        if self._keeper:
            try:
                self._keeper.send(word, socket.MSG_DONTWAIT)
            except OSError:  # code has closed it
                self._keeper = None
