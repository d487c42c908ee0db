"""Interrupts of a cell: SIGINT, the timer of the time limit, and the end of the cell's processes.

SIGINT is ignored between requests, noted while a request is handled, and raised in user code. The stock kernel lets it
raise wherever a request is handled, and then the request may end without a reply. Two more places are spared: a
`shield`, in which half-done work would break the kernel, and the making of an interrupted cell's traceback and reply.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple

from ..checkpoints.oom_priority import DECOY_COMMAND
from ..checkpoints.taking import children_of_code, has_children, is_tracker, lives, threads_of_code
from ..processes import ProcessStat, Table, command_line, descends, ignores, processes, signal_all, stop_and_kill
from . import pools

AT_ONCE = 0.001  # seconds until code ends that was interrupted before it began
AGAIN = 0.05  # seconds until the timer rings again: a signal right before a system call does not end this
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)

IsUsers = Callable[[FrameType | None], bool]


class _State:
    """The interrupts of the main thread: at most one cell at a time."""

    is_users: IsUsers | None = None  # of the cell whose code interrupts reach
    was_noted = False
    raised = 0  # interrupts, in the code of this request
    rings = False
    shields = 0  # of the main thread: an interrupt is raised in no other


def ignore() -> None:
    """Ignore interrupts: there is nothing to interrupt. One that was to be raised soon is not for the next cell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _State.rings:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _State.was_noted = _State.rings = False
    _State.raised, _State.shields, _State.is_users = 0, 0, None


def expect() -> None:
    """Note interrupts: they are meant for the code that is about to run."""
    signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def reaching_code(is_users: IsUsers) -> Iterator[None]:
    """Raise interrupts in the code that runs within; the kernel itself ends code that awaits.

    `is_users` tells the user's frames from a library's.
    """
    if _State.is_users or signal.getsignal(signal.SIGINT) is not _interrupt:
        if _State.was_noted:
            raise_soon()
        yield
        return
    _State.is_users = is_users
    try:
        if _State.was_noted:  # checked last, so that no interrupt is noted and never raised
            raise_soon()
        yield
    finally:
        _State.is_users = None


class Shield:
    """Delays interrupts while it is entered; they are raised soon after it was left."""

    def __enter__(self) -> None:
        if is_main_thread():
            _State.shields += 1

    def __exit__(self, *_: object) -> None:
        if not is_main_thread():
            return
        _State.shields = max(0, _State.shields - 1)
        if _State.was_noted and not _State.shields:
            raise_soon()


shield = Shield()


def shielded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that no interrupt leaves half done."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with shield:
            return function(*args, **kwargs)

    return run


def shield_forks() -> None:
    """Let no interrupt meet the callbacks of a fork, where Python ignores exceptions: a lock would stay locked."""
    os.fork = shielded(os.fork)
    os.register_at_fork(after_in_child=_expose)


def let_be_nudged() -> None:
    """Let PID 1's nudge end a system call, so that Python handles an interrupt that came right before this."""
    signal.signal(signal.SIGURG, _nothing)


def _nothing(*_: object) -> None:
    pass


def _expose() -> None:
    _State.shields, _State.was_noted = 0, False


def is_shielded() -> bool:
    """Return whether an interrupt has to wait; if so, note it."""
    if _State.shields:
        _State.was_noted = True
    return bool(_State.shields)


def raised() -> int:
    """Return how often the code of this request was interrupted."""
    return _State.raised


def note_raised() -> None:
    """Note that an interrupt is about to be raised in the code, and interrupt the processes that it waits for."""
    _State.raised += 1
    cell_processes.interrupt()


@contextmanager
def ending_the_cell() -> Iterator[None]:
    """Raise an interrupt again that a library within has handled by itself: no later line of the cell may run."""
    before = _State.raised
    try:
        yield
    except Exception:
        if _State.raised == before:
            raise
    if _State.raised > before:
        raise KeyboardInterrupt


def rings() -> bool:
    """Return whether `raise_soon` set the timer that has rung; True once for each time."""
    rings, _State.rings = _State.rings, False
    if rings:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return rings


def raise_soon(seconds: float = AT_ONCE) -> None:
    """Interrupt the cell after a time in seconds, unless it has ended by then."""
    _State.was_noted, _State.rings = False, True
    signal.setitimer(signal.ITIMER_REAL, max(seconds, AT_ONCE), AGAIN)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise in user code; note an interrupt that comes before or after it."""
    if not _State.is_users:
        _State.was_noted = True
    elif not is_shielded() and (not _State.raised or _State.is_users(frame)):
        note_raised()
        raise KeyboardInterrupt


def raise_unraisable() -> None:
    """Let an interrupt come again that met a finalizer, where Python ignores exceptions."""
    stock = sys.unraisablehook

    def hook(ignored: Any) -> None:
        if issubclass(ignored.exc_type, INTERRUPTIONS) and _State.raised and is_main_thread():
            _State.raised -= 1  # so that it ends whatever runs by then
            raise_soon()
        else:
            stock(ignored)

    sys.unraisablehook = hook


def is_main_thread() -> bool:
    """Return whether this is the thread in which signals are handled."""
    return threading.current_thread() is threading.main_thread()


# The time limit inside the kernel: an interval timer that interrupts the cell as Ctrl-C would.
#
# A process has one such timer, and code may use it, too: `signal.alarm`. A signal before the time limit belongs to the
# code: it goes to the handler that this cell or an earlier one has set.


EARLY = 0.005  # seconds that a timer may ring before its time by another clock


class Countdown:
    """Interrupts a cell at its time limit.

    The request's metadata have the limit. Code can disarm this timer; PID 1 and the host have their own.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ends = 0.0
        self._handler: Any = signal.SIG_DFL  # of the code's alarms

    def start(self) -> None:
        """Arm the timer for the request that is about to run; a cell that a thread or another cell runs has none."""
        if not is_main_thread() or self._shell.depth > 1:
            return
        if rings():
            _State.was_noted = True
        timeout = self._shell.kernel.get_parent("shell").get("metadata", {}).get("timeout")
        has_timeout = isinstance(timeout, (int, float)) and timeout > 0
        handler = signal.getsignal(signal.SIGALRM)
        if handler != self.expire and (has_timeout or handler is signal.SIG_DFL):  # py rings, too
            self._handler = handler
            signal.signal(signal.SIGALRM, self.expire)
        self._ends = 0.0
        if has_timeout:
            self._ends = time.monotonic() + timeout
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def cancel(self) -> None:
        """Disarm the timer, unless the cell ran within another one."""
        if is_main_thread() and not self._shell.depth:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def expire(self, signum: int, frame: FrameType | None) -> None:
        """Act as SIGINT would now: raise KeyboardInterrupt in a plain cell, cancel one that awaits."""
        left, is_interrupt = self._ends - time.monotonic(), rings()
        if not is_interrupt and left > EARLY and self._handler is not signal.SIG_DFL:
            self._ring(signum, frame, left)
            return
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and (is_interrupt or not self._shell.is_held()):
            interrupt(signal.SIGINT, frame)

    def _ring(self, signum: int, frame: FrameType | None, left: float) -> None:
        """Call the code's own handler, and count down the rest of the time unless the code has set another alarm."""
        if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, left)
        if callable(self._handler):
            self._handler(signum, frame)


# Processes of a cell: an interrupt or a time limit ends them, as Ctrl-C in a terminal does.
#
# What the cell has started in the kernel's process group gets SIGINT at the moment of the interrupt, so that whatever
# waits for it returns, and SIGKILL a little later. Forks of the kernel get SIGKILL at once, and print nothing.
# Processes live on that were started to do so: in a session or group of their own, or by a shell's `&`, which makes
# them ignore SIGINT; and so do those of earlier cells, but for the workers of a pool that the cell waits for.


TICKS = os.sysconf("SC_CLK_TCK")  # of a second, in which the kernel tells when a process started
GRACE = 0.3  # seconds from SIGINT to SIGKILL; less than PID 1's graces for the kernel itself
LOOK_SECONDS = 0.01  # between two looks whether processes have ended
MAX_NAMED, MAX_SHOWN = 8, 60  # of what still runs after a cell, and characters of each


class CellProcesses:
    """The processes that the running cell has started."""

    def __init__(self) -> None:
        self._owner = 0  # the pid of the kernel; in a fork of the cell's there is nothing to end
        self._strangers: frozenset[int] = frozenset()  # of the same machine, which no cell can have started
        self._survivors: set[int] = set()  # of an interrupted cell
        self._killed: set[int] = set()  # at an interrupt: forks, and workers of the pools that the cell waits for
        self._named: set[object] = set()  # threads, and pids of processes, that an answer has named
        self._since = 0  # ticks from the machine's start to the start of the cell
        self._until: int | None = None  # likewise to its last interrupt
        self._deadline = 0.0  # for those that got SIGINT (monotonic seconds)
        self._earlier: Table = {}
        self._earlier_jobs: pools.Jobs = frozenset()

    def begin(self) -> None:
        """Begin a cell."""
        self._owner, self._since, self._until = os.getpid(), _ticks(), None
        self._strangers, self._survivors, self._killed = frozenset(), set(), set()
        self._earlier_jobs = pools.jobs()

    def interrupt(self) -> None:
        """Interrupt the processes that the cell waits for, right before it is interrupted itself."""
        if os.getpid() == self._owner:
            self._until, self._deadline = _ticks(), time.monotonic() + GRACE
            table = processes()
            related = {pid for pid in table if descends(pid, (os.getppid(),), table)}  # the parent adopts orphans
            self._strangers = frozenset(table.keys() - related - _own_group(table).keys() - {self._owner})
            forks, programs = self._started(table)
            workers = pools.end(self._earlier_jobs, forks) & table.keys()
            signal_all(parents_first(programs, table), signal.SIGINT)
            signal_all(forks | workers, signal.SIGKILL)
            self._killed |= forks | workers

    def end(self) -> None:
        """End a cell; if it was interrupted, end what it waited for, and leave no zombies of its forks."""
        if os.getpid() != self._owner:
            return
        if self._until is not None:
            self._end_started()
        self._earlier = _own_group(processes(self._strangers)) if has_children() else {}

    def left(self, *, has_checkpoints: bool) -> "Left":
        """Return what an answer is to name: once, whatever keeps checkpoints from being taken; survivors."""
        try:
            blocking: set[Any] = {*threads_of_code(), *children_of_code()} if has_checkpoints else set()
        except OSError:  # an operating system that does not tell
            blocking = set()
        if not blocking and not self._survivors:
            self._named.clear()
            return Left([], False)
        new = {each for each in blocking | self._survivors if each not in self._named}
        self._named = blocking | self._survivors
        return Left(sorted(_shown(each, self._owner) for each in new)[:MAX_NAMED], bool(new & blocking))

    def _end_started(self) -> None:
        forks, programs = self._started(processes(self._strangers))
        killed = stop_and_kill(lambda table: self._started(table).forks, self._strangers) if forks else set[int]()
        while any(lives(str(pid)) for pid in programs) and time.monotonic() < self._deadline:
            time.sleep(LOOK_SECONDS)
        if programs:
            stop_and_kill(lambda table: self._started(table).programs, self._strangers)
        self._survivors = self._surviving(processes(self._strangers))
        if "multiprocessing" in sys.modules:  # so that it notices the end of its processes
            sys.modules["multiprocessing"].active_children()
        for pid in forks | killed | self._killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _young(self, table: Table) -> set[int]:
        """Return the processes that started while the cell ran, until its interrupt."""
        until = self._until or 0
        return {
            pid
            for pid, each in table.items()
            if self._since <= each.started <= until and pid != self._owner and not _is_earlier(pid, each, self._earlier)
        }

    def _surviving(self, table: Table) -> set[int]:
        """Return what the cell has started to live on, without its children and our own processes."""
        ours = {command_line(self._owner), DECOY_COMMAND, b""}
        roots = (os.getppid(),)
        young = {pid for pid in self._young(table) if descends(pid, roots, table) and command_line(pid) not in ours}
        return {pid for pid in young if table[pid].parent not in young}

    def _started(self, table: Table) -> "Started":
        """Return the cell's processes as of its interrupt, and what they have started since, in two kinds."""
        young = self._young(table)
        own = command_line(self._owner)
        forks = {pid for pid in young if descends(pid, (self._owner,), table) and command_line(pid) == own}
        group = _own_group(table)
        roots = {pid for pid in young & group.keys() - forks if not self._lives_on(pid, group)}
        later = {pid for pid in group if pid not in young and descends(pid, roots, table)}
        return Started(forks, roots | later)

    def _lives_on(self, pid: int, group: Table) -> bool:
        """Return whether a process of the kernel's group was started to live on: it ignores SIGINT by itself."""
        if not ignores(pid, signal.SIGINT):
            return False
        parent = group[pid].parent
        if parent in group and ignores(parent, signal.SIGINT):  # inherited
            return self._lives_on(parent, group)
        return parent != self._owner or is_tracker(str(pid))


class Started(NamedTuple):
    """Processes of a cell, by pid: forks of the kernel, and programs."""

    forks: set[int]
    programs: set[int]


class Left(NamedTuple):
    """Names of what still runs after a cell, and whether some of it keeps checkpoints from being taken."""

    names: list[str]
    blocks: bool


cell_processes = CellProcesses()


def parents_first(pids: Iterable[int], table: Table) -> list[int]:
    """Return processes in the order of their start: a shell goes on if its program is interrupted before itself."""
    return sorted(pids, key=lambda pid: (table[pid].started, pid))


def _shown(running: Any, owner: int) -> str:
    """Return how an answer names a thread, or the process of a pid."""
    if isinstance(running, threading.Thread):
        return f"thread {running.name!r:.{MAX_SHOWN}}"
    line = command_line(running)
    text = "a fork of Python" if line == command_line(owner) else line.replace(b"\0", b" ").decode("utf-8", "replace")
    return f"{text.strip()[:MAX_SHOWN]} (pid {running})"


def _ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def _own_group(table: Table) -> Table:
    """Return the processes of this process's group, but this one."""
    return {pid: each for pid, each in table.items() if each.group == os.getpgrp() and pid != os.getpid()}


def _is_earlier(pid: int, process: ProcessStat, earlier: Table) -> bool:
    return pid in earlier and earlier[pid].started == process.started
