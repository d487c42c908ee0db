"""How a command's processes are ended: those of its session, those that left it, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from agent_tools.guest.processes import family, kill_tree, processes

PATIENCE = 20.0  # seconds
LEAVER = "import os, time; os.fork() or os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
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


def _eventually(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_family_is_all_that_comes_from_the_leader(leader: subprocess.Popen[str]) -> None:
    pids = _pids(leader)
    assert set(family(leader.pid)) == pids | {leader.pid}


def test_who_left_the_session_is_killed_with_it(leader: subprocess.Popen[str]) -> None:
    pids = _pids(leader)
    kill_tree(leader.pid, {})
    assert leader.wait(PATIENCE) == -signal.SIGKILL
    _eventually(lambda: not pids & set(processes()))


def test_who_left_is_found_also_once_the_leader_has_ended(leader: subprocess.Popen[str]) -> None:
    pids = _pids(leader)
    known = family(leader.pid)
    leader.terminate()
    _eventually(lambda: leader.pid not in processes())  # it is not reaped yet
    kill_tree(leader.pid, known)
    _eventually(lambda: not pids & set(processes()))


def test_a_pid_that_came_again_is_spared(leader: subprocess.Popen[str]) -> None:
    (other,) = _pids(leader) - {leader.pid}
    leader.terminate()
    _eventually(lambda: leader.pid not in processes())
    kill_tree(leader.pid, {other: processes()[other].started - 1})
    assert other in processes()
    os.kill(other, signal.SIGKILL)


def test_one_that_is_stopped_is_seen_as_such(leader: subprocess.Popen[str]) -> None:
    _pids(leader)
    assert not processes()[leader.pid].is_stopped
    os.kill(leader.pid, signal.SIGSTOP)
    _eventually(lambda: processes()[leader.pid].is_stopped)
