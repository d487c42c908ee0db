import os
import select
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.runtime.transport.lifeline import MAX_WORDS, Link

FOREVER = 10.0  # seconds: only a failing test waits this long


@pytest.fixture
def path() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="at-", dir="/tmp")
    yield Path(folder) / "init.sock"
    shutil.rmtree(folder)


@pytest.fixture
def link(path: Path) -> Iterator[Link]:
    link = Link(path)
    yield link
    link.close()


@pytest.fixture
def guest() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guest.settimeout(FOREVER)
        yield guest


@pytest.fixture
def connected(link: Link, guest: socket.socket, path: Path) -> Link:
    guest.connect(str(path))
    assert link.accept(time.monotonic() + FOREVER, lambda: True)
    return link


def heard(link: Link) -> list[str] | None:
    assert select.select([link.fileno()], [], [], FOREVER)[0]
    return link.receive()


def test_anyone_who_reaches_the_socket_may_connect(link: Link, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_one_guest_connects_and_the_door_is_gone(connected: Link, path: Path) -> None:
    assert not path.exists()
    assert connected.fileno() >= 0


def test_words_go_both_ways(connected: Link, guest: socket.socket) -> None:
    connected.send("start 2")
    assert guest.recv(100) == b"start 2"
    guest.send(b"ready 2")
    assert heard(connected) == ["ready", "2"]


def test_the_last_of_three_words_is_a_whole_text(connected: Link, guest: socket.socket) -> None:
    guest.send(b"failed 1 Traceback: of many words")
    assert heard(connected) == ["failed", "1", "Traceback: of many words"]


def test_each_message_is_read_alone(connected: Link, guest: socket.socket) -> None:
    guest.send(b"ready 1")
    guest.send(b"exit 1 code 0")
    assert heard(connected) == ["ready", "1"]
    assert heard(connected) == ["exit", "1", "code 0"]


def test_silence_is_not_an_end(connected: Link) -> None:
    assert connected.receive() is None
    assert not connected.is_closed_by_guest


def test_a_guest_that_hangs_up_is_an_end(connected: Link, guest: socket.socket) -> None:
    guest.close()
    assert heard(connected) == []
    assert connected.is_closed_by_guest


def test_words_before_the_end_are_still_heard(connected: Link, guest: socket.socket) -> None:
    guest.send(b"exit 1 signal 9 oom")
    guest.close()
    assert heard(connected) == ["exit", "1", "signal 9 oom"]
    assert heard(connected) == []


def test_an_oversized_message_is_cut(connected: Link, guest: socket.socket) -> None:
    guest.send(b"failed 1 " + b"x" * 3 * MAX_WORDS)
    assert heard(connected) == ["failed", "1", "x" * (MAX_WORDS - len("failed 1 "))]
    assert connected.receive() is None


def test_bytes_that_are_no_ascii_are_replaced(connected: Link, guest: socket.socket) -> None:
    guest.send("failed 1 é\udcff".encode("utf-8", "surrogateescape"))
    assert heard(connected) == ["failed", "1", "\ufffd\ufffd\ufffd"]


def test_sending_to_a_guest_that_is_gone_is_no_error(connected: Link, guest: socket.socket) -> None:
    guest.close()
    connected.send("kill")
    connected.send("kill")
    assert connected.receive() == []


def test_sending_to_a_guest_that_does_not_read_is_no_error(connected: Link) -> None:
    for _ in range(5_000):  # more than its buffer holds
        connected.send("interrupt")
    assert connected.receive() is None


def test_waiting_ends_when_the_sandbox_has_ended(link: Link) -> None:
    assert not link.accept(time.monotonic() + 10 * FOREVER, lambda: False)


def test_waiting_ends_at_the_deadline(link: Link) -> None:
    assert not link.accept(time.monotonic() - 1, lambda: True)


def test_closing_hangs_up_and_may_be_repeated(connected: Link, guest: socket.socket) -> None:
    connected.close()
    connected.close()
    assert guest.recv(100) == b""
    assert connected.fileno() == -1
    assert connected.receive() == []
    connected.send("start 1")


def test_closing_before_anyone_came_removes_the_socket(link: Link, path: Path) -> None:
    link.close()
    assert not path.exists()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_line_open(connected: Link, guest: socket.socket) -> None:
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)  # until the parent is done
        os._exit(0 if connected.fileno() == -1 else 1)
    connected.close()
    try:
        assert guest.recv(100) == b""
    finally:
        os.close(go)
        os.close(wait)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0
