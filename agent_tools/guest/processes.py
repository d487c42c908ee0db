"""The processes of the sandbox as /proc shows them, and how to end some of them while others live on.

Theory of operation
    What is to be ended may fork faster than a list of it can be read. So everything is stopped first, in one step that
    no fork escapes; then the list is true, and whoever is doomed is killed where it stands. A process that was just
    being stopped may have woken others: it is done again until nobody doomed is left. Those who are spared go on.
"""

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 2.0  # seconds for which the doomed are waited for
ROUNDS = 100  # in which others may come up
PAUSE = 0.002  # seconds between two looks


Family = dict[int, int]
"""Processes by pid, with their starts: a pid that came again is none of them."""


class Process(NamedTuple):
    """One process: its parent and its session, as pids; its start, in ticks, which tells it from a later one."""

    parent: int
    session: int
    started: int = 0
    is_stopped: bool = False


Table = dict[int, Process]
"""Processes by pid."""


def processes() -> Table:
    """Return all that live, by pid; those that have ended and are not reaped yet are not among them."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    parent, session, started = int(fields[1]), int(fields[3]), int(fields[19])
                    found[int(name)] = Process(parent, session, started, fields[0] in (b"T", b"t"))
    return found


def is_child(pid: int) -> bool:
    """Return whether a process is a child of this one, and has not been waited for."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def status_of_main_thread(pid: int) -> "int | None":
    """Return the wait status of a process's main thread, which has ended; None while it lives. Format: proc(5)."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return int(fields[49]) if fields[0] == b"Z" else None
    return None


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal; not where the operating system does not tell."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        masks = [line.split()[1] for line in file if line.startswith(b"SigIgn:")]
        return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)
    return False


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used; infinity where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return math.inf


def descends(pid: int, roots: Collection[int], table: Table) -> bool:
    """Return whether a process is one of `roots` or comes from one."""
    for _ in range(len(table) + 1):  # a table that is read while it changes could hold a circle
        if pid in roots:
            return True
        if pid not in table:
            return False
        pid = table[pid].parent
    return False


def kill_all_but(spared: Collection[int]) -> None:
    """Kill every process of the sandbox but these, what comes from them, and this one, which is PID 1.

    The killed are waited for, for PATIENCE at most; where others still come up in the last of ROUNDS, all are killed.
    """
    if not _kill_while_all_stand(lambda table: {pid for pid in table if not descends(pid, spared, table)}):
        _signal(-1, signal.SIGKILL)


def kill_offspring(spared: Collection[int]) -> None:
    """Kill all that comes from this process, which adopts its orphans, but these and what comes from them.

    For the supervisor of a branch in a sandbox: all processes of the sandbox are stopped meanwhile. Where two
    supervisors stop each other, PID 1 lets them go on at the next process that it ends.
    """

    def doomed(table: Table) -> set[int]:
        below = {pid for pid in table if descends(pid, (os.getpid(),), table)}
        return {pid for pid in below if not descends(pid, spared, table)}

    _kill_while_all_stand(doomed)


def _kill_while_all_stand(doomed_of: Callable[[Table], set[int]]) -> bool:
    """Kill processes, but not this one, while every process is stopped; return False if others still come up.

    They are waited for, for PATIENCE after the last that came up.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    new_rounds = 0
    while True:
        _signal(-1, signal.SIGSTOP)
        doomed = doomed_of(processes()) - {os.getpid()}
        has_new = not doomed <= killed
        new_rounds += has_new
        killed |= doomed
        _signal_all(doomed, signal.SIGKILL)
        if not doomed or new_rounds > ROUNDS or (not has_new and time.monotonic() > deadline):
            break
        time.sleep(PAUSE)
    _signal(-1, signal.SIGCONT)
    return new_rounds <= ROUNDS


def kill_below(root: int, spared: Collection[int]) -> None:
    """Kill all that comes from a process which adopts its orphans, but these and what comes from them.

    All are stopped before the first is killed, for PATIENCE at most, one after another: for processes that share their
    machine with others.
    """
    doomed: set[int] = set()
    for _ in _rounds():
        table = processes()
        below = {pid for pid in table if pid != root and descends(pid, (root,), table)}
        doomed = {pid for pid in below if not descends(pid, spared, table)}
        if not doomed:
            return
        _signal_all(doomed, signal.SIGKILL if _all_stopped(doomed, table) else signal.SIGSTOP)
    _signal_all(doomed, signal.SIGKILL)


def kill_forks(since: int) -> set[int]:
    """Kill what comes from this process by forks alone, from a moment on (ticks since the machine's start).

    They are stopped first, for PATIENCE at most. Returns the pids.
    """
    own, killed, doomed = _command_line(os.getpid()), set[int](), set[int]()
    for _ in _rounds():
        table = processes()
        young = {pid for pid, each in table.items() if each.started >= since and pid != os.getpid()}
        forked = {pid for pid in young if descends(pid, (os.getpid(),), table)}
        doomed = {pid for pid in forked if pid in killed or _command_line(pid) == own}  # who is dying has none
        if not doomed:
            return killed
        killed |= doomed
        _signal_all(doomed, signal.SIGKILL if _all_stopped(doomed, table) else signal.SIGSTOP)
    _signal_all(doomed, signal.SIGKILL)
    return killed


def kill_branch(root: int) -> bool:
    """Kill a process which adopts its orphans, and all that comes from it, while every process is stopped.

    It dies with all of them at once: what outlived it would come from its parent. False: it has died before.
    """
    doomed: set[int] = set()
    for _ in _rounds():
        _signal(-1, signal.SIGSTOP)
        table = processes()
        doomed = {pid for pid in table if descends(pid, (root,), table)}
        if _all_stopped(doomed, table):
            break
    _signal_all(doomed, signal.SIGKILL)
    _signal(-1, signal.SIGCONT)
    return root in doomed


def family(root: int) -> Family:
    """Return a session's leader, all of its session and all that comes from it, with their starts."""
    table = processes()
    return {pid: each.started for pid, each in table.items() if each.session == root or descends(pid, (root,), table)}


def kill_tree(root: int, known: Family) -> None:
    """Kill a session's leader, all of its session and all that comes from it; at most for PATIENCE.

    `known` are those of its family at an earlier time: what comes from them is found where the leader has ended since.
    """
    _signal(-root, signal.SIGSTOP)  # its group, in one step: as a rule this is all
    doomed: list[int] = []
    for _ in _rounds():
        table = processes()
        roots = {root, *(pid for pid, started in known.items() if pid in table and table[pid].started == started)}
        doomed = [pid for pid in table if table[pid].session == root or descends(pid, roots, table)]
        if _all_stopped(doomed, table):
            break
        _signal_all(doomed, signal.SIGSTOP)
    _signal_all((-root, *doomed), signal.SIGKILL)


def kill_subreaper(root: int) -> None:
    """Kill all that comes from a process which adopts its orphans, and then itself; at most for PATIENCE."""
    kill_below(root, ())
    _signal(root, signal.SIGKILL)


def adopt_orphans() -> None:
    """Be the parent of all that comes from this process and has lost its own."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _command_line(pid: int) -> bytes:
    """Return what a process was started with, which a fork shares; nothing once it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def _all_stopped(pids: Collection[int], table: Table) -> bool:
    return all(table[pid].is_stopped for pid in pids)


def _rounds() -> Iterator[None]:
    """Go on for PATIENCE, with a pause after each round."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(PAUSE)


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        _signal(pid, number)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
