"""A kernel that cannot start: the host is told at once, and waits for nothing.

Where a copy ends before it can be the kernel, and where there is no room for a process.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from typing import Any, cast

import pytest

from agent_tools.guest import commands
from agent_tools.guest.checkpoints.datagrams import AWAKE
from agent_tools.guest.checkpoints.keeper import COPY_ENDED, Copy
from agent_tools.guest.pid1 import init as init_module
from agent_tools.guest.pid1.helper_processes import HelperProcesses
from agent_tools.guest.pid1.init import NO_ROOM, Init
from agent_tools.guest.processes import is_child
from agent_tools.guest.wire.words import NO_COPY, Exit, Failed, Marked
from tests.unit.guest.pid1.no_room import forbid_descriptors, forbid_processes


class Host:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.say = self.told.append


class Reach:
    """Reaches nobody."""

    def kill_all_but(self, spared: set[int]) -> None:
        pass

    def kill_branch(self, pid: int) -> bool:
        return False

    def signal(self, number: int) -> None:
        pass


def told_after_waking(*, has_kernel: bool) -> list[Any]:
    """Return what the host of an Init in this process hears, whose one copy is woken and killed."""
    host = Host()
    init = Init(cast("Any", host), lambda *_: None, cast("Any", Reach()))
    if has_kernel:
        init.kernel_pid = sleeper()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    copy = sleeper()
    init.keeper.copies.append(Copy(copy, 1, ours))
    init.wake(2, 1, [theirs.fileno(), theirs.fileno()])
    assert not any(isinstance(each, Failed) for each in host.told)
    os.kill(copy, signal.SIGKILL)
    os.waitid(os.P_PID, copy, os.WEXITED | os.WNOWAIT)
    init.reap()
    return [each for each in host.told if isinstance(each, Failed)]


def told_of_a_short_life() -> list[Any]:
    """Return what the host hears of a fork that said it is the kernel, and ended before that was read."""
    host = Host()
    init = Init(cast("Any", host), lambda *_: None, cast("Any", Reach()))
    with init.keeper.connect() as line:
        init.generation = 2
        pid = os.fork()
        if pid == 0:
            line.send(AWAKE)
            os._exit(7)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        init.reap()
    return host.told


def left_by_a_look() -> list[Any]:
    """Return whether children that ended are left by one look, and by one that waits for all."""
    init_module.REAPED_AT_ONCE = 20  # in this process, which ends with the test
    init = Init(cast("Any", Host()), lambda *_: None, cast("Any", Reach()))
    pids = [os.fork() or os._exit(0) for _ in range(21)]
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    left = []
    for block in (False, True):
        init.reap(block=block)
        left.append(any(map(is_child, pids)))
    return left


def told_without_room() -> list[Any]:
    """Return what the host hears of a start where no process can be forked."""
    host = Host()
    init = Init(cast("Any", host), lambda *_: None, cast("Any", Reach()))
    forbid_processes()
    init.start(2, [])
    return host.told


def told_without_descriptors() -> list[Any]:
    """Return what the host hears of a start, a waking and a branch where no descriptor can be had."""
    host = Host()
    init = Init(cast("Any", host), lambda *_: None, cast("Any", Reach()))
    ours, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    copy = Copy(sleeper(), 1, ours)
    forbid_descriptors()
    try:
        init.start(2, [])
        init.keeper.copies.append(copy)
        init.branch(1, 1, [])
        init.wake(3, 1, [0, 1])
    finally:
        os.kill(copy.pid, signal.SIGKILL)
    return host.told


def said_of_commands_without_descriptors() -> bytes:
    """Return what the caller of a command hears where no descriptor can be had; other helpers do not start, either."""
    helpers = HelperProcesses(lambda: None, lambda _: False, "/")
    ours, theirs = socket.socketpair()
    forbid_descriptors()
    helpers.spawn([theirs.fileno()])
    helpers.serve_network([theirs.fileno()])
    helpers.serve_names(set(helpers.watched()))
    return ours.recv(1_000)


def sleeper() -> int:
    """Return a child that waits."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


@pytest.mark.parametrize(("has_kernel", "reason"), [(False, f"{NO_COPY} "), (True, COPY_ENDED)])
def test_a_copy_that_is_killed_when_it_was_woken_is_told(has_kernel: bool, reason: str) -> None:
    """In place of a kernel that lived, it is not that there is none: the kernel has ended for it."""
    pid = os.fork()  # of an Init all children are processes of the sandbox
    if pid == 0:
        told = []
        try:
            told = told_after_waking(has_kernel=has_kernel)
        finally:
            os._exit(0 if told == [Failed(2, reason)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_one_look_collects_only_so_many_children_unless_it_waits_for_all() -> None:
    """Code may make children as fast as they are collected."""
    pid = os.fork()
    if pid == 0:
        left = []
        try:
            left = left_by_a_look()
        finally:
            os._exit(0 if left == [True, False] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_end_of_a_kernel_is_told_however_soon_it_came_after_its_waking() -> None:
    pid = os.fork()
    if pid == 0:
        told = []
        try:
            told = told_of_a_short_life()
        finally:
            os._exit(0 if told == [Exit(2, code=7, signal=0, oom=False)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_start_without_room_for_a_process_is_told_and_pid_1_goes_on() -> None:
    pid = os.fork()
    if pid == 0:
        told = []
        try:
            told = told_without_room()
        finally:
            os._exit(0 if told == [Failed(2, f"{NO_ROOM} ({os.strerror(errno.EAGAIN)})")] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_orders_without_room_for_a_descriptor_are_answered_and_pid_1_goes_on() -> None:
    pid = os.fork()
    if pid == 0:
        told = []
        try:
            told = told_without_descriptors()
        finally:
            full = f"{NO_ROOM} ({os.strerror(errno.EMFILE)})"
            os._exit(0 if told == [Failed(2, full), Marked(2, 0), Failed(3, full)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_helpers_without_room_for_a_descriptor_are_refused() -> None:
    pid = os.fork()
    if pid == 0:
        said = b""
        try:
            said = said_of_commands_without_descriptors()
        finally:
            os._exit(0 if said == commands.NO_ROOM else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
