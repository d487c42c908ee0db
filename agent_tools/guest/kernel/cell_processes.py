"""Processes of a cell: an interrupt or a time limit ends them, as Ctrl-C in a terminal does.

What the cell has started in the kernel's process group gets SIGINT at the moment of the interrupt, so that whatever
waits for it returns, and SIGKILL a little later. Forks of the kernel get SIGKILL at once, and print nothing.
Processes live on that were started to do so: in a session or group of their own, or by a shell's `&`, which makes
them ignore SIGINT; and so do those of earlier cells, but for the workers of a pool that the cell waits for.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..checkpoints import pools
from ..checkpoints.blockers import children_of_code, is_tracker, lives, threads_of_code
from ..checkpoints.oom_priority import DECOY_COMMAND
from ..processes import (
    ProcessStat,
    Table,
    command_line,
    descends,
    has_children,
    ignores,
    processes,
    signal_all,
    stop_and_kill,
)

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
        self._earlier = {}
        with contextlib.suppress(OSError):  # of code that has used up its descriptors
            if self._until is not None:
                self._end_started()
            if has_children():
                self._earlier = _own_group(processes(self._strangers))

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

    def _started(self, table: Table) -> "StartedProcess":
        """Return the cell's processes as of its interrupt, and what they have started since, in two kinds."""
        young = self._young(table)
        own = command_line(self._owner)
        forks = {pid for pid in young if descends(pid, (self._owner,), table) and command_line(pid) == own}
        group = _own_group(table)
        roots = {pid for pid in young & group.keys() - forks if not self._lives_on(pid, group)}
        later = {pid for pid in group if pid not in young and descends(pid, roots, table)}
        return StartedProcess(forks, roots | later)

    def _lives_on(self, pid: int, group: Table) -> bool:
        """Return whether a process of the kernel's group was started to live on: it ignores SIGINT by itself."""
        if not ignores(pid, signal.SIGINT):
            return False
        parent = group[pid].parent
        if parent in group and ignores(parent, signal.SIGINT):  # inherited
            return self._lives_on(parent, group)
        return parent != self._owner or is_tracker(pid)


class StartedProcess(NamedTuple):
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
