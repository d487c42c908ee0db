"""PID 1 that holds: it waits for a program to hand over its streams, and ends with that."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from agent_tools.guest.pid1 import hand_over, hold
from agent_tools.guest.pid1.hold import Hold, limit
from agent_tools.guest.process_scope import WholeSandbox

FEW, LONG = "256", "30"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    address = f"\0agent_tools.test.{os.getpid()}"
    monkeypatch.setattr(hold, "ADDRESS", address)
    monkeypatch.setattr(hold, "limit", lambda what, most: None)  # which is for good
    monkeypatch.setattr(hold, "silence", lambda *descriptors: None)
    return address


@pytest.fixture
def bearer(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, which starts before PID 1 listens."""
    code = f"from agent_tools.guest.pid1 import hand_over; hand_over.main({address!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(30)
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()


def test_the_streams_of_the_program_are_pid_1s(bearer: subprocess.Popen[bytes]) -> None:
    assert bearer.stdin
    assert bearer.stdout
    lifeline = Hold(FEW, FEW, LONG).await_host()
    assert lifeline.pid == bearer.pid
    assert bearer.stdout.read(13) == b"\0\0\0\0\0\0\0\x05ready"
    bearer.stdin.write(b"\0\0\0\0\0\0\0\x04kill")
    bearer.stdin.flush()
    orders: list[object] = []
    while not orders:
        readers, _ = lifeline.watched()
        orders += [order for order, _ in lifeline.exchange(set(readers) - {lifeline.bearer.fileno()})]
    assert lifeline.is_open
    lifeline.close()
    assert bearer.wait(30) == 0  # it ends with PID 1


def test_the_end_of_the_program_is_the_end_of_the_line(bearer: subprocess.Popen[bytes]) -> None:
    lifeline = Hold(FEW, FEW, LONG).await_host()
    bearer.kill()
    bearer.wait(30)
    assert lifeline.bearer.fileno() in lifeline.watched()[0]
    list(lifeline.exchange({lifeline.bearer.fileno()}))
    assert not lifeline.is_open
    lifeline.close()


def test_the_end_of_the_stream_is_one_too(bearer: subprocess.Popen[bytes]) -> None:
    assert bearer.stdin
    lifeline = Hold(FEW, FEW, LONG).await_host()
    bearer.stdin.close()
    while lifeline.is_open:
        list(lifeline.exchange({lifeline.stdin}))
    lifeline.close()


def test_only_one_is_ever_listened_to(bearer: subprocess.Popen[bytes], address: str) -> None:
    lifeline = Hold(FEW, FEW, LONG).await_host()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late, pytest.raises(ConnectionRefusedError):
        late.connect(address)
    lifeline.close()


def test_one_that_nobody_comes_to_ends(address: str) -> None:
    with pytest.raises(SystemExit, match="nobody"):
        Hold(FEW, FEW, "0.05").await_host()


def test_one_that_somebody_comes_to_and_says_nothing_ends(address: str) -> None:
    held = Hold(FEW, FEW, "0.2")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(address)
        with pytest.raises(SystemExit, match="nobody"):
            held.await_host()


@pytest.mark.parametrize("handed_over", [0, 1, 3])
def test_whoever_brings_other_than_two_streams_ends_it(address: str, handed_over: int) -> None:
    held = Hold(FEW, FEW, LONG)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bearer:
        bearer.connect(address)
        if handed_over:
            socket.send_fds(bearer, [b"\0"], [0] * handed_over)
        bearer.shutdown(socket.SHUT_WR)
        with pytest.raises(SystemExit, match="nobody"):
            held.await_host()


def test_the_bearer_may_say_nothing_for_as_long_as_it_likes(bearer: subprocess.Popen[bytes]) -> None:
    lifeline = Hold(FEW, FEW, LONG).await_host()
    assert lifeline.bearer.gettimeout() is None
    lifeline.close()


def test_the_program_waits_for_pid_1_but_not_for_ever(address: str) -> None:
    with pytest.raises(OSError, match="refused"):
        hand_over.connected(address, 0.0)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    timer = threading.Timer(0.2, lambda: (listening.bind(address), listening.listen(1)))
    timer.start()
    hand_over.connected(address, float("inf")).close()
    timer.join()
    listening.close()


def test_a_limit_holds_for_all_that_comes_after_and_a_lower_one_stays() -> None:
    pid = os.fork()
    if pid == 0:
        limit(resource.RLIMIT_NOFILE, 100)
        limit(resource.RLIMIT_NOFILE, 200)
        is_so = resource.getrlimit(resource.RLIMIT_NOFILE) == (100, 100)
        limit(resource.RLIMIT_FSIZE, 2**20)
        os._exit(0 if is_so and resource.getrlimit(resource.RLIMIT_FSIZE) == (2**20, 2**20) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_program_is_spared_whatever_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    spared: list[set[int]] = []
    monkeypatch.setattr("agent_tools.guest.processes.os.getpid", lambda: 1)
    monkeypatch.setattr("agent_tools.guest.process_scope.kill_all_but", lambda pids: spared.append(set(pids)))
    WholeSandbox({7}).kill_all_but(())
    WholeSandbox({7}).kill_all_but({8})
    assert spared == [{7}, {7, 8}]
