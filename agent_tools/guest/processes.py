"""The processes of the sandbox as /proc shows them, and how to end some of them while others go on.

Theory of operation
    Processes that are to be ended may fork faster than a list of them can be read. So every process is stopped first,
    in one step that no fork escapes; then the list is complete, and the doomed ones are killed. A process that was
    just being stopped may have woken others: this repeats until no doomed process is left. Then the spared ones go on.
"""

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from .gvisor import is_gvisor

PR_SET_CHILD_SUBREAPER = 36
END_TIMEOUT = 2.0  # seconds to wait for doomed processes to end
ROUNDS = 100  # in which new processes may come up
READ_AGAIN = 3  # times; code can keep a parent whose first thread has ended, which is left out of every table
PAUSE = 0.002  # seconds between two looks


Family = dict[int, int]
"""Processes by pid, with their starts: a reused pid has another start."""


class ProcessStat(NamedTuple):
    """One process: its parent, session and group, as pids; its start in ticks, which differs when the pid is reused."""

    parent: int
    session: int
    started: int = 0
    is_stopped: bool = False
    group: int = 0


Table = dict[int, ProcessStat]
"""Processes by pid."""


def processes(but: Collection[int] = ()) -> Table:
    """Return all live processes by pid, without zombies; those in `but` are not looked at."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in but:
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    parent, session, started = int(fields[1]), int(fields[3]), int(fields[19])
                    is_stopped = fields[0] in (b"T", b"t")
                    found[int(name)] = ProcessStat(parent, session, started, is_stopped, int(fields[2]))
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
    """Return whether a process ignores a signal; False where the operating system does not say."""
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
    """Return whether a process is one of `roots` or descends from one."""
    for _ in range(len(table) + 1):  # a table that is read while it changes could hold a circle
        if pid in roots:
            return True
        if pid not in table:
            return False
        pid = table[pid].parent
    return False


def kill_all_but(spared: Collection[int]) -> None:
    """Kill every process of the sandbox but these, their descendants, and this one, which is PID 1.

    Waits for their end, for END_TIMEOUT at most; if new ones still come up in the last of ROUNDS, kills all.
    """
    if not _kill_while_all_stand(lambda table: {pid for pid in table if not descends(pid, spared, table)}):
        _signal(-1, signal.SIGKILL)


def kill_offspring(spared: Collection[int]) -> None:
    """Kill the descendants of this process, which adopts its orphans, except these and their descendants.

    For the supervisor of a branch in a sandbox: all processes of the sandbox are stopped meanwhile. Where two
    supervisors stop each other, PID 1 lets them go on at the next process that it ends.
    """
    _kill_while_all_stand(lambda table: _below(os.getpid(), spared, table))


def _kill_while_all_stand(doomed_of: Callable[[Table], set[int]]) -> bool:
    """Kill processes, but not this one, while every process is stopped; return False if others still come up.

    They are waited for, for END_TIMEOUT after the last that came up.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + END_TIMEOUT
    new_rounds = 0
    while True:
        _signal(-1, signal.SIGSTOP)
        doomed = doomed_of(_untorn()) - {os.getpid()}
        has_new = not doomed <= killed
        new_rounds += has_new
        killed |= doomed
        signal_all(doomed, signal.SIGKILL)
        if not doomed or new_rounds > ROUNDS or (not has_new and time.monotonic() > deadline):
            break
        time.sleep(PAUSE)
    _signal(-1, signal.SIGCONT)
    return new_rounds <= ROUNDS


def _untorn() -> Table:
    """Return all live processes of the sandbox; read them again if the parent of one ended while they were read.

    Such a process would seem to descend from none of them, though one has adopted it: a copy that is woken, say.
    """
    table = processes()
    for _ in range(READ_AGAIN):
        if all(each.parent in table for each in table.values() if each.parent):
            break
        table = processes()
    return table


def kill_below(root: int, spared: Collection[int]) -> None:
    """Kill the descendants of a process which adopts its orphans, except these and their descendants.

    All are stopped, one after another, before the first is killed, for END_TIMEOUT at most: for processes that share
    their machine with others.
    """
    stop_and_kill(lambda table: _below(root, spared, table))


def _below(root: int, spared: Collection[int], table: Table) -> set[int]:
    """Return the descendants of a process, except these and their descendants."""
    below = {pid for pid in table if pid != root and descends(pid, (root,), table)}
    return {pid for pid in below if not descends(pid, spared, table)}


def stop_and_kill(doomed_of: Callable[[Table], set[int]], but: Collection[int] = ()) -> set[int]:
    """Stop processes one after another, and kill them once all stand, until none is left or END_TIMEOUT is over.

    Those in `but` are not looked at. Return the pids. Under gVisor they are killed without a stop: when a member of a
    process group is reaped there and another is stopped, also if that has ended, the whole group gets SIGHUP.
    """
    doomed, killed, stops = set[int](), set[int](), not is_gvisor()
    for _ in _rounds():
        table = processes(but)
        doomed = doomed_of(table)
        if not doomed:
            return killed
        killed |= doomed
        signal_all(doomed, signal.SIGSTOP if stops and not _all_stopped(doomed, table) else signal.SIGKILL)
    signal_all(doomed, signal.SIGKILL)
    return killed


def kill_branch(root: int) -> bool:
    """Kill a process which adopts its orphans, with its descendants, while every process is stopped.

    All die at once: survivors would become children of its parent. Return False if it had died before.
    """
    doomed: set[int] = set()
    for _ in _rounds():
        _signal(-1, signal.SIGSTOP)
        table = processes()
        doomed = {pid for pid in table if descends(pid, (root,), table)}
        if _all_stopped(doomed, table):
            break
    signal_all(doomed, signal.SIGKILL)
    _signal(-1, signal.SIGCONT)
    return root in doomed


def family(root: int) -> Family:
    """Return a session's leader, its session and its descendants, with their starts."""
    table = processes()
    return {pid: each.started for pid, each in table.items() if each.session == root or descends(pid, (root,), table)}


def kill_tree(root: int, known: Family) -> None:
    """Kill a session's leader, its session and its descendants; wait for END_TIMEOUT at most.

    `known` is its family at an earlier time: descendants of these are found even if the leader has ended since.
    """
    _signal(-root, signal.SIGSTOP)  # its group, in one step: as a rule this is all
    doomed: list[int] = []
    for _ in _rounds():
        table = processes()
        roots = {root, *(pid for pid, started in known.items() if pid in table and table[pid].started == started)}
        doomed = [pid for pid in table if table[pid].session == root or descends(pid, roots, table)]
        if _all_stopped(doomed, table):
            break
        signal_all(doomed, signal.SIGSTOP)
    signal_all((-root, *doomed), signal.SIGKILL)


def kill_subreaper(root: int) -> None:
    """Kill the descendants of a process which adopts its orphans, and then itself; wait for END_TIMEOUT at most."""
    kill_below(root, ())
    _signal(root, signal.SIGKILL)


def has_children() -> bool:
    """Return whether this process has any child, also one that has ended and was not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def adopt_orphans() -> None:
    """Become the parent of orphans among the descendants of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def command_line(pid: int) -> bytes:
    """Return the command line of a process, which a fork shares; b'' once it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def _all_stopped(pids: Collection[int], table: Table) -> bool:
    return all(table[pid].is_stopped for pid in pids)


def _rounds() -> Iterator[None]:
    """Go on for END_TIMEOUT, with a pause after each round."""
    deadline = time.monotonic() + END_TIMEOUT
    while time.monotonic() < deadline:
        yield
        time.sleep(PAUSE)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send processes a signal; those that have ended are skipped."""
    for pid in pids:
        _signal(pid, number)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
