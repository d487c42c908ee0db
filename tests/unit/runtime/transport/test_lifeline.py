import os
import select
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.guest.wire.lines import MAX_LINE
from agent_tools.guest.wire.words import (
    Arm,
    Disarm,
    Exit,
    Failed,
    Files,
    Interrupt,
    Kill,
    Order,
    Pause,
    Ready,
    Report,
    Resume,
    Start,
    write,
)
from agent_tools.runtime.transport import lifeline as transport
from agent_tools.runtime.transport.lifeline import Lifeline, Listener

FOREVER = 10.0  # seconds: only a failing test waits this long


@pytest.fixture
def path() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="at-", dir="/tmp")
    yield Path(folder) / "init.sock"
    shutil.rmtree(folder)


@pytest.fixture
def listener(path: Path) -> Iterator[Listener]:
    listener = Listener(path)
    yield listener
    listener.close()


@pytest.fixture
def guest() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
        guest.settimeout(FOREVER)
        yield guest


@pytest.fixture
def lifeline(listener: Listener, guest: socket.socket, path: Path) -> Iterator[Lifeline]:
    guest.connect(str(path))
    lifeline = listener.accept(time.monotonic() + FOREVER, lambda: True)
    assert lifeline
    yield lifeline
    lifeline.close()


def heard(lifeline: Lifeline, most: int = 1) -> list[Report]:
    assert select.select([lifeline.fileno()], [], [], FOREVER)[0]
    return lifeline.receive(most)


def test_anyone_who_reaches_the_socket_may_connect(listener: Listener, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_one_guest_connects_and_the_door_is_gone(lifeline: Lifeline, path: Path) -> None:
    assert not path.exists()
    assert lifeline.fileno() >= 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as second, pytest.raises(FileNotFoundError):
        second.connect(str(path))


ORDERS: list[tuple[Order, bytes]] = [
    (Start(2), b"start 2"),
    (Files(3), b"files 3"),
    (Arm(30.2, 0.5), b"arm 30.200 0.500"),
    (Disarm(), b"disarm"),
    (Interrupt(), b"interrupt 0.000"),
    (Kill(), b"kill"),
    (Pause(), b"pause"),
    (Resume(), b"resume"),
]


@pytest.mark.parametrize(("order", "line"), ORDERS, ids=[line.decode() for _, line in ORDERS])
def test_an_order_is_one_datagram(lifeline: Lifeline, guest: socket.socket, order: Order, line: bytes) -> None:
    assert lifeline.send(order)
    assert lifeline.send(Kill())
    assert (guest.recv(100), guest.recv(100)) == (line, b"kill")


def test_open_descriptors_go_with_an_order(lifeline: Lifeline, guest: socket.socket) -> None:
    reader, writer = os.pipe()
    assert lifeline.send(Start(1), [reader, writer])
    os.close(writer)
    os.close(reader)
    line, (their_reader, their_writer), _, _ = socket.recv_fds(guest, 100, 5)
    os.write(their_writer, b"x")
    assert (line, os.read(their_reader, 9)) == (b"start 1", b"x")
    os.close(their_writer)
    os.close(their_reader)


def test_after_an_interrupt_no_run_follows_before_all_orders_are_read(
    lifeline: Lifeline, guest: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "READ_WITHIN", FOREVER)
    lifeline.arm(30.0, 0.5)
    lifeline.send(Interrupt())
    disarming = threading.Thread(target=lifeline.disarm)
    disarming.start()
    assert [guest.recv(100), guest.recv(100)] == [b"arm 30.000 0.500", b"interrupt 0.000"]
    disarming.join(0.05)
    assert disarming.is_alive()
    assert guest.recv(100) == b"disarm"
    disarming.join(FOREVER / 2)
    assert not disarming.is_alive()


def test_only_an_interrupted_run_has_its_end_read_at_once(lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(transport, "READ_WITHIN", 0.05)
    lifeline.arm(30.0, 0.5)
    lifeline.disarm()
    assert not waits
    lifeline.arm(30.0, 0.5)
    lifeline.send(Interrupt())
    lifeline.disarm()  # which a guest that reads nothing does not hold up for long
    assert waits
    waits.clear()
    lifeline.arm(30.0, 0.5)
    lifeline.disarm()
    assert not waits


def test_the_traceback_of_a_failed_start_is_a_whole_text(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(write(Failed(1, "Traceback: of\nmany words")))
    assert heard(lifeline) == [Failed(1, "Traceback: of\nmany words")]


def test_each_report_is_read_alone(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(b"ready")
    guest.send(b"exit 1 0 0 0 /tmp 0 0")
    assert heard(lifeline) == [Ready()]
    assert heard(lifeline) == [Exit(1)]


def test_no_more_is_read_than_was_asked_for(lifeline: Lifeline, guest: socket.socket) -> None:
    for number in range(5):
        guest.send(write(Exit(number)))
    assert heard(lifeline, 3) == [Exit(0), Exit(1), Exit(2)]
    assert heard(lifeline, 3) == [Exit(3), Exit(4)]
    assert heard_nothing(lifeline)


def test_unknown_words_count_and_are_dropped(lifeline: Lifeline, guest: socket.socket) -> None:
    for line in (b"hello", b" ", b"\xff", b"exit 1", b"exit 1 0 0 0 /tmp 0 0"):
        guest.send(line)
    assert heard(lifeline, 4) == []
    assert heard(lifeline, 4) == [Exit(1)]


def heard_nothing(lifeline: Lifeline) -> bool:
    return lifeline.receive(5) == [] and not lifeline.has_ended


def test_silence_is_not_an_end(lifeline: Lifeline) -> None:
    assert heard_nothing(lifeline)


def test_a_guest_that_hangs_up_is_an_end(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.close()
    assert heard(lifeline) == []
    assert lifeline.has_ended


def test_an_empty_datagram_is_an_end(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(b"")
    assert heard(lifeline) == []
    assert lifeline.has_ended
    guest.send(b"exit 1 0 0 0 /tmp 0 0")
    assert lifeline.receive(5) == []  # it is not heard any more


def test_reports_before_the_end_are_still_heard(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(b"exit 1 0 9 1 /tmp 0 0")
    guest.close()
    assert heard(lifeline) == [Exit(1, signal=9, oom=True)]
    assert not lifeline.has_ended
    assert heard(lifeline) == []
    assert lifeline.has_ended


def test_a_report_and_the_end_after_it_are_told_in_one_look(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(b"exit 1 0 0 0 /tmp 0 0")
    guest.close()
    assert heard(lifeline, 5) == [Exit(1)]
    assert lifeline.has_ended


def test_a_sandbox_that_was_given_up_is_an_end_and_not_heard(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.send(b"exit 1 0 0 0 /tmp 0 0")
    lifeline.mark_dead()
    assert lifeline.has_ended
    assert lifeline.receive(5) == []


@pytest.mark.parametrize("text", [b"eHh4" * MAX_LINE, b"\xc3\xa9", b"x y"])
def test_a_malformed_report_is_ignored(lifeline: Lifeline, guest: socket.socket, text: bytes) -> None:
    guest.send(b"failed 1 " + text)
    assert heard_nothing(lifeline)


def test_sending_to_a_guest_that_is_gone_is_told_and_no_error(lifeline: Lifeline, guest: socket.socket) -> None:
    guest.close()
    assert [lifeline.send(Kill()), lifeline.send(Kill())] == [False, False]
    assert lifeline.receive(5) == []


def test_sending_to_a_guest_that_does_not_read_is_told_and_no_error(lifeline: Lifeline) -> None:
    sent = [lifeline.send(Interrupt()) for _ in range(5_000)]  # more than its buffer holds
    assert (sent[0], sent[-1]) == (True, False)
    assert heard_nothing(lifeline)


def test_waiting_ends_when_the_sandbox_has_ended(listener: Listener) -> None:
    assert listener.accept(time.monotonic() + 10 * FOREVER, lambda: False) is None


def test_waiting_ends_at_the_deadline(listener: Listener) -> None:
    assert listener.accept(time.monotonic() - 1, lambda: True) is None


def test_closing_hangs_up_and_may_be_repeated(lifeline: Lifeline, guest: socket.socket) -> None:
    lifeline.close()
    lifeline.close()
    assert guest.recv(100) == b""
    assert lifeline.fileno() == -1
    assert lifeline.receive(5) == []
    assert not lifeline.send(Start(1))


def test_closing_before_anyone_came_removes_the_socket(listener: Listener, path: Path) -> None:
    listener.close()
    listener.close()
    assert not path.exists()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_line_open(lifeline: Lifeline, guest: socket.socket) -> None:
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)  # until the parent is done
        os._exit(0 if lifeline.fileno() == -1 else 1)
    lifeline.close()
    try:
        assert guest.recv(100) == b""
    finally:
        os.close(go)
        os.close(wait)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_neither_listens_nor_removes_the_path(listener: Listener, path: Path) -> None:
    child = os.fork()
    if child == 0:
        listener.close()
        os._exit(0 if path.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.exists()
