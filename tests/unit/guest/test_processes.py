"""Processes of the sandbox as /proc shows them, and ending a tree of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from agent_tools.guest.processes import Process, descends, kill_tree, processes

CHAIN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session={apart})
time.sleep(60)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_this_process_is_there_with_its_parent_and_session() -> None:
    assert processes()[os.getpid()] == Process(os.getppid(), os.getsid(0))


def test_who_descends_from_whom_is_told_even_of_a_table_with_a_circle() -> None:
    table = {1: Process(0, 1), 2: Process(1, 1), 3: Process(2, 1), 8: Process(9, 1), 9: Process(8, 1)}
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
        wait_for(lambda: len(children()) == 1)
        (child,) = children()
        if apart:
            wait_for(lambda: processes()[child].session == child)
        kill_tree(root.pid)
        assert root.wait(10) == -9
        wait_for(lambda: child not in processes())
    finally:
        root.kill()
        root.wait()
