"""Processes of the sandbox as /proc shows them, and ending a tree of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent_tools.guest.processes import (
    ProcessStat,
    descends,
    family,
    kill_all_but,
    kill_below,
    kill_tree,
    processes,
    status_of_main_thread,
    stop_and_kill,
)
from tests.waiting import until

CHAIN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session={apart})
time.sleep(60)
"""


def test_this_process_is_there_with_its_parent_and_session() -> None:
    assert processes()[os.getpid()][:2] == (os.getppid(), os.getsid(0))


def test_who_descends_from_whom_is_told_even_of_a_table_with_a_circle() -> None:
    table = {
        1: ProcessStat(0, 1),
        2: ProcessStat(1, 1),
        3: ProcessStat(2, 1),
        8: ProcessStat(9, 1),
        9: ProcessStat(8, 1),
    }
    assert descends(3, {2}, table)
    assert descends(2, {2}, table)
    assert not descends(1, {2}, table)
    assert not descends(8, {2}, table)


@pytest.mark.parametrize("apart", [False, True])
def test_a_tree_goes_with_its_root_in_whatever_session(apart: bool) -> None:
    inner = "import time; time.sleep(60)"
    root = subprocess.Popen([sys.executable, "-c", CHAIN.format(inner=inner, apart=apart)], start_new_session=True)

    def children() -> list[int]:
        return [pid for pid, each in processes().items() if each.parent == root.pid]

    try:
        until(lambda: len(children()) == 1)
        (child,) = children()
        if apart:
            until(lambda: processes()[child].session == child)
        kill_tree(root.pid, {})
        assert root.wait(10) == -9
        until(lambda: child not in processes())
    finally:
        root.kill()
        root.wait()


LEAVER = "import os, time; os.fork() or os.setsid(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
"""Two processes, each in a session of its own."""


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[str]]:
    """A session's leader with a child that has left the session."""
    with subprocess.Popen(
        [sys.executable, "-c", LEAVER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as made:
        yield made
        made.kill()


def _pids(leader: subprocess.Popen[str]) -> set[int]:
    assert leader.stdout
    return {int(leader.stdout.readline()) for _ in range(2)}


def test_the_family_is_all_that_comes_from_the_leader(leader: subprocess.Popen[str]) -> None:
    pids = _pids(leader)
    assert set(family(leader.pid)) == pids | {leader.pid}


def test_who_left_is_found_also_once_the_leader_has_ended(leader: subprocess.Popen[str]) -> None:
    pids = _pids(leader)
    known = family(leader.pid)
    leader.terminate()
    until(lambda: leader.pid not in processes())  # it is not reaped yet
    kill_tree(leader.pid, known)
    until(lambda: not pids & set(processes()))


def test_a_pid_that_came_again_is_spared(leader: subprocess.Popen[str]) -> None:
    (other,) = _pids(leader) - {leader.pid}
    leader.terminate()
    until(lambda: leader.pid not in processes())
    kill_tree(leader.pid, {other: processes()[other].started - 1})
    assert other in processes()
    os.kill(other, signal.SIGKILL)


def test_one_that_is_stopped_is_seen_as_such(leader: subprocess.Popen[str]) -> None:
    _pids(leader)
    assert not processes()[leader.pid].is_stopped
    os.kill(leader.pid, signal.SIGSTOP)
    until(lambda: processes()[leader.pid].is_stopped)


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=[600]).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({number}, 7)
"""
EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # of the thread that calls it


def test_a_main_thread_that_ended_before_the_others_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", HEADLESS.format(number=EXIT)], stdout=subprocess.PIPE) as headless:
        assert headless.stdout
        assert headless.stdout.readline() == b"ready\n"
        until(lambda: status_of_main_thread(headless.pid) is not None)
        assert headless.poll() is None
        assert os.waitstatus_to_exitcode(status_of_main_thread(headless.pid) or 0) == 7
        headless.kill()
    assert status_of_main_thread(os.getpid()) is None


ROOT = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def leave():  # a process that the root adopts
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        if os.fork(): time.sleep(600)
        time.sleep(600)
    return os.wait()
leave(); leave()
print(*open("/proc/self/task/%d/children" % os.getpid()).read().split(), flush=True)
time.sleep(600)
"""


def test_all_below_a_process_goes_but_those_who_are_spared_and_what_comes_from_them() -> None:
    with subprocess.Popen([sys.executable, "-c", ROOT], stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout
        doomed, spared = map(int, root.stdout.readline().split())

        def below(pid: int) -> list[int]:
            table = processes()
            return [each for each in table if descends(each, {pid}, table)]

        try:
            until(lambda: len(below(root.pid)) == 5)
            kill_below(root.pid, {spared})
            assert below(doomed) == []
            assert len(below(spared)) == 2
            assert not any(processes()[pid].is_stopped for pid in below(root.pid))
            kill_below(root.pid, ())
            assert below(root.pid) == [root.pid]
        finally:
            kill_below(root.pid, ())
            root.kill()


def test_a_process_that_another_has_just_adopted_is_not_taken_for_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read while processes end: one may still name a parent that is not in it any more."""
    adopted, stranger, keeper = 7, 8, 5
    settled = {1: ProcessStat(0, 1), keeper: ProcessStat(1, 5), adopted: ProcessStat(keeper, 7)}
    torn = {**settled, adopted: ProcessStat(6, 7), stranger: ProcessStat(1, 8)}
    tables, signalled = iter([torn, {**settled, stranger: ProcessStat(1, 8)}]), []
    monkeypatch.setattr("agent_tools.guest.processes.processes", lambda: next(tables, settled))
    monkeypatch.setattr("agent_tools.guest.processes._signal", lambda *sent: signalled.append(sent))
    monkeypatch.setattr("os.getpid", lambda: 1)
    kill_all_but({keeper})
    assert [pid for pid, number in signalled if number == signal.SIGKILL] == [stranger]


@pytest.mark.parametrize(("is_gvisor", "sent"), [(False, [signal.SIGSTOP, signal.SIGKILL]), (True, [signal.SIGKILL])])
def test_processes_are_killed_once_they_stand_but_under_gvisor_without_a_stop(
    monkeypatch: pytest.MonkeyPatch, is_gvisor: bool, sent: list[int]
) -> None:
    monkeypatch.setattr("agent_tools.guest.processes.is_gvisor", lambda: is_gvisor)
    signalled = []
    monkeypatch.setattr("os.kill", lambda pid, number: signalled.append((pid, number)))

    def table(_but: object) -> dict[int, ProcessStat]:
        numbers = [number for _, number in signalled]
        return {} if signal.SIGKILL in numbers else {7: ProcessStat(1, 7, is_stopped=signal.SIGSTOP in numbers)}

    monkeypatch.setattr("agent_tools.guest.processes.processes", table)
    assert stop_and_kill(lambda table: set(table)) == {7}
    assert signalled == [(7, number) for number in sent]
