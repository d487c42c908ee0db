"""PID 1's side of branches: who is their supervisor, whatever is said."""

import os
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.checkpoints.datagrams import MAX_BYTES
from agent_tools.guest.pid1.supervisors import Supervisors


def is_this_process(pid: int) -> bool:
    return pid == os.getpid()


def test_a_child_that_says_it_is_awake_is_the_supervisor() -> None:
    branches = Supervisors()
    with branches.expect(7) as theirs:
        assert len(branches.filenos()) == 1
        branches.hear(is_this_process)
        assert branches.pids == set()
        theirs.send(b"awake")
        branches.hear(is_this_process)
    assert branches.pids == {os.getpid()}
    assert branches.filenos() == []
    assert branches.end(8) == 0
    assert branches.end(7) == os.getpid()
    assert branches.pids == set()


def test_one_that_has_ended_is_known_no_more() -> None:
    branches = Supervisors()
    with branches.expect(7) as theirs:
        theirs.send(b"awake")
        branches.hear(is_this_process)
    assert not branches.forget(1)
    assert branches.forget(os.getpid())
    assert branches.end(7) == 0


@pytest.mark.parametrize("word", [b"awake ", b"copy 1", b"\xff"])
def test_another_word_ends_the_wait(word: bytes) -> None:
    branches = Supervisors()
    with branches.expect(7) as theirs:
        theirs.send(word)
        branches.hear(is_this_process)
        assert branches.pids == set()
        assert branches.filenos() == []


def test_who_is_no_child_is_not_believed() -> None:
    branches = Supervisors()
    with branches.expect(7) as theirs:
        theirs.send(b"awake")
        branches.hear(lambda _pid: False)
    assert branches.pids == set()


def test_an_end_without_a_word_ends_the_wait_and_so_does_an_order() -> None:
    branches = Supervisors()
    branches.expect(7).close()
    branches.hear(is_this_process)
    assert branches.filenos() == []
    with branches.expect(8) as theirs:
        assert branches.end(8) == 0
        assert theirs.recv(1) == b""


words = st.one_of(st.just(b"awake"), st.binary(min_size=1, max_size=2 * MAX_BYTES))


@given(st.lists(st.tuples(words, st.booleans()), max_size=20))
def test_whatever_is_said_costs_little_and_leaves_nothing_open(said: list[tuple[bytes, bool]]) -> None:
    branches, before = Supervisors(), len(os.listdir("/proc/self/fd"))
    began = time.process_time()
    mine, theirs = socket.socketpair()
    for number, (word, has_descriptor) in enumerate(said):
        with branches.expect(number) as end:
            try:
                socket.send_fds(end, [word], [theirs.fileno()] * has_descriptor)
            except PermissionError:  # it refuses descriptors, from Linux 6.16 on
                end.send(word)
            branches.hear(is_this_process)
        assert branches.pids <= {os.getpid()}
        assert branches.filenos() == []
    assert time.process_time() - began < 0.5 + 0.01 * len(said)
    mine.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) <= before
