"""What a kernel wrote last, as PID 1 finds it: text, too much of it, and pipes that code has locked."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from agent_tools.guest.pid1.last_words import LEFT_OUT, MAX_BYTES, LastWords
from tests.leaks import children
from tests.unit.guest.pid1.no_room import forbid_descriptors, forbid_processes
from tests.waiting import until

ENOUGH = 100.0  # seconds for a fork on a busy machine


@pytest.fixture(autouse=True)
def every_fork_ends() -> Iterator[None]:
    """Wait for the forks of a test by their ids, as PID 1 waits for all its children."""
    before = set(children(os.getpid()))
    yield
    for pid in set(children(os.getpid())) - before:
        os.waitpid(int(pid), 0)


def nothing() -> None:
    pass


def wrote(*texts: bytes) -> dict[str, str]:
    """Return what is told of a kernel that wrote these texts to stdout and stderr, and has ended."""
    words, before = LastWords(), len(os.listdir("/proc/self/fd"))
    _, stdout, _, stderr = words.pipes()
    for writer, text in zip((stdout, stderr), texts):
        os.write(writer, text)
    told = {"stdout": "", "stderr": ""}
    for each in words.read_output(7, nothing, ENOUGH):
        assert each.generation == 7
        told[each.stream] += each.text
    for writer in (stdout, stderr):
        os.close(writer)
    assert len(os.listdir("/proc/self/fd")) == before
    return told


@pytest.mark.parametrize(
    ("stdout", "stderr"), [(b"", b""), (b"one\n", b""), (b"", b"two"), ("gr\u00fcn".encode() * 5000, b"\xff")]
)
def test_both_streams_are_told(stdout: bytes, stderr: bytes) -> None:
    told = wrote(stdout, stderr)
    assert told == {"stdout": stdout.decode(), "stderr": stderr.decode("utf-8", "replace")}


def test_what_is_beyond_the_bound_is_told_as_lost() -> None:
    words = LastWords()
    _, stdout, _, stderr = words.pipes()
    ctypes.CDLL(None).fcntl(stdout, 1031, 1 << 20)  # F_SETPIPE_SZ
    os.write(stdout, b"x" * (MAX_BYTES + 1))
    text = "".join(each.text for each in words.read_output(1, nothing, ENOUGH))
    assert text == "x" * MAX_BYTES + LEFT_OUT
    for writer in (stdout, stderr):
        os.close(writer)


def test_nothing_is_told_twice_or_of_no_kernel() -> None:
    words = LastWords()
    assert list(words.read_output(1, nothing)) == []
    assert wrote(b"x")["stdout"] == "x"


def locked(writer: int) -> int:
    """Return a process that has a pipe's lock until it is killed: it waits for a socket, in sendfile."""
    one, other = socket.socketpair()
    with one, other:
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).sendfile(writer, one.fileno(), None, 1)
            os._exit(0)

        def waits() -> bool:
            with open(f"/proc/{pid}/wchan") as file:
                return "unix_stream" in file.read()

        until(waits)
    return pid


def test_a_locked_pipe_is_not_waited_for() -> None:
    words = LastWords()
    reader, stdout, _, stderr = words.pipes()
    holder = locked(stdout)
    began = time.monotonic()
    assert list(words.read_output(1, nothing, 0.1)) == []
    assert time.monotonic() - began < ENOUGH
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(reader)
    assert os.waitpid(holder, os.WNOHANG) == (0, 0), "it holds the lock still"
    os.kill(holder, signal.SIGKILL)
    for writer in (stdout, stderr):
        os.close(writer)


def test_a_fork_lets_go_of_the_pipes_of_earlier_kernels_too() -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            words, before = LastWords(), len(os.listdir("/proc/self/fd"))
            writers = [*words.pipes()[1::2]]
            forbid_processes()
            assert list(words.read_output(1, nothing)) == []
            writers += words.pipes()[1::2]
            for writer in writers:
                os.close(writer)
            words.close()
            code = len(os.listdir("/proc/self/fd")) - before
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("but", [0, 1])
def test_without_room_for_descriptors_nothing_is_read_and_the_pipes_are_closed_later(but: int) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            words, before = LastWords(), len(os.listdir("/proc/self/fd"))
            pipes = words.pipes()
            forbid_descriptors(but=but)
            assert list(words.read_output(1, nothing)) == []
            for writer in pipes[1::2]:
                os.close(writer)
            words.close()
            code = len(os.listdir("/proc/self/fd")) - before
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_pipe_beside_which_there_is_no_room_for_another_is_closed() -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            words = LastWords()
            forbid_descriptors(but=3)
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(OSError, match="Too many open files"):
                words.pipes()
            code = len(os.listdir("/proc/self/fd")) - before
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
