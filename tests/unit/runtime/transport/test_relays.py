"""One thread for the relays of many sandboxes, of which some are hostile."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent_tools.guest.wire.framing import WINDOW
from agent_tools.guest.wire.mux import MAX_OUT, Mux
from agent_tools.machine import event_loop
from agent_tools.runtime.transport.relay import Relay
from agent_tools.runtime.transport.socket_stdio import SocketStdio
from tests.waiting import until

FOREVER = 20.0  # seconds: only a failing test waits this long


def frame(channel: int, payload: bytes = b"") -> bytes:
    return struct.pack(">II", channel, len(payload)) + payload


def read(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := end.recv(size - len(data))):
        data += piece
    return data


class Sandbox:
    """A relay with one channel, 1. `guest` is the far end of its pipe, `end` the host's of the channel."""

    def __init__(self) -> None:
        pipe, self.guest = socket.socketpair()
        self.words, words = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end, carried = socket.socketpair()
        for each in (self.guest, self.words, self.end):
            each.settimeout(FOREVER)
        self.relay = Relay(SocketStdio(pipe), words)
        self.relay.carry(1, carried)

    def echoes(self, data: bytes) -> bool:
        """Return whether these bytes come through to the guest, and back."""
        self.end.sendall(data)
        assert read(self.guest, len(frame(1, data))) == frame(1, data)
        self.guest.sendall(frame(1, data))
        return read(self.end, len(data)) == data

    def close(self) -> None:
        self.relay.close()
        for each in (self.guest, self.words, self.end):
            each.close()


@pytest.fixture
def make() -> Iterator[Callable[[], Sandbox]]:
    made: list[Sandbox] = []

    def make() -> Sandbox:
        made.append(Sandbox())
        return made[-1]

    yield make
    for each in made:
        each.close()
    until(lambda: threads() == 0)


def threads() -> int:
    return sum(each.name == "agent-tools-events" for each in threading.enumerate())


def test_many_sandboxes_are_carried_by_one_thread(make: Callable[[], Sandbox]) -> None:
    sandboxes = [make() for _ in range(100)]
    assert threads() == 1
    for number, each in enumerate(sandboxes):
        assert each.echoes(b"%d" % number)
    for each in sandboxes[::2]:
        each.close()
    assert threads() == 1
    assert all(each.echoes(b"still here") for each in sandboxes[1::2])


def test_a_guest_that_reads_nothing_holds_up_no_other(make: Callable[[], Sandbox]) -> None:
    deaf, other = make(), make()
    deaf.end.settimeout(0.5)
    with pytest.raises(TimeoutError):
        deaf.end.sendall(bytes(16 * WINDOW))
    assert other.echoes(bytes(65536 - 8))
    for number in range(200):
        assert other.echoes(b"%d" % number)
    assert len(deaf.relay._mux.out) <= MAX_OUT + WINDOW


def test_a_host_that_reads_nothing_holds_up_no_other(make: Callable[[], Sandbox]) -> None:
    flooding, other = make(), make()
    for _ in range(WINDOW // 65536):  # as much as it may have on its way
        flooding.guest.sendall(frame(1, bytes(65536)))
    for number in range(200):
        assert other.echoes(b"%d" % number)
    assert read(flooding.end, WINDOW) == bytes(WINDOW)


def test_a_guest_that_never_stops_talking_holds_up_no_other(make: Callable[[], Sandbox]) -> None:
    loud, other, may_end = make(), make(), threading.Event()

    def talk() -> None:
        noise = frame(7, bytes(65536 - 8)) * 16  # of a channel that there is not: dropped, and never granted
        with contextlib.suppress(OSError):
            while not may_end.is_set():
                loud.guest.sendall(noise)

    talking = threading.Thread(target=talk)
    talking.start()
    try:
        for number in range(50):
            assert other.echoes(b"%d" % number)
        assert talking.is_alive()
    finally:
        may_end.set()
        loud.close()
        talking.join(FOREVER)


def test_a_guest_that_breaks_the_protocol_ends_no_other(make: Callable[[], Sandbox]) -> None:
    broken, other = make(), make()
    broken.guest.sendall(b"\xff" * 100)
    assert broken.words.recv(100) == b""
    assert other.echoes(b"still here")


def test_a_fault_of_a_relay_ends_no_other(make: Callable[[], Sandbox], caplog: pytest.LogCaptureFixture) -> None:
    faulty, other = make(), make()

    def fault() -> bytes | None:
        raise ZeroDivisionError

    faulty.relay._stdio.receive = fault  # type: ignore[method-assign]
    faulty.guest.sendall(b"x")
    assert faulty.words.recv(100) == b""
    assert other.echoes(b"still here")
    assert "Reading from or writing to a sandbox failed." in caplog.text


def test_descriptors_whose_numbers_come_again_are_not_confused(make: Callable[[], Sandbox]) -> None:
    other = make()
    for number in range(200):
        sandbox = make()
        assert sandbox.echoes(b"%d" % number)
        sandbox.close()
        assert other.echoes(b"%d" % number)


def test_a_forked_child_takes_nothing_from_its_parent_and_has_a_loop_of_its_own(make: Callable[[], Sandbox]) -> None:
    sandbox = make()
    if (pid := os.fork()) == 0:
        mine = Sandbox()
        is_own = mine.relay._loop is not sandbox.relay._loop and mine.echoes(b"child")
        mine.close()
        os._exit(0 if is_own else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sandbox.echoes(b"parent")


def test_the_loop_begins_anew_after_its_last_relay(make: Callable[[], Sandbox]) -> None:
    for _ in range(50):
        sandbox = make()
        assert sandbox.echoes(b"x")
        sandbox.close()
        assert event_loop._place().loop is None


def test_a_child_forked_while_another_thread_joins_is_not_held_up() -> None:
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with event_loop._place().lock:
            held.set()
            enough.wait(FOREVER)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(FOREVER)
    if (pid := os.fork()) == 0:
        signal.alarm(10)  # ends a child that waits for a lock which nobody in it holds
        sandbox = Sandbox()
        os._exit(0 if sandbox.echoes(b"child") else 1)
    enough.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TwoPipes:
    """A stdio of two descriptors, as over ssh: one to read from, another to write to."""

    def __init__(self) -> None:
        self.reader, self.prints = os.pipe()
        self.reads, self._writer = os.pipe()
        for each in (self.reader, self._writer):
            os.set_blocking(each, False)

    def fileno(self) -> int:
        return self.reader

    def writer(self) -> int:
        return self._writer

    def receive(self) -> bytes | None:
        try:
            return os.read(self.reader, 1024)
        except BlockingIOError:
            return None

    def send(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._writer, data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        for each in (self.reader, self._writer):
            with contextlib.suppress(OSError):
                os.close(each)


def test_a_full_pipe_is_written_on_once_there_is_room_though_the_sandbox_says_nothing() -> None:
    stdio, (near, far), (words, end) = TwoPipes(), socket.socketpair(), socket.socketpair()
    relay = Relay(stdio, words)
    relay.carry(1, near)
    data = os.urandom(WINDOW)  # more than a pipe holds
    threading.Thread(target=far.sendall, args=(data,), daemon=True).start()
    came = b""
    while len(came) < len(data) + 8 * _frames(came):
        assert select.select([stdio.reads], [], [], FOREVER)[0], f"{len(came):,} bytes came, and then no more"
        came += os.read(stdio.reads, 1024 * 1024)
    relay.close()
    for each in (far, end):
        each.close()
    for each in (stdio.prints, stdio.reads):
        os.close(each)


class Holding(SocketStdio):
    """A stdio that has read on already: what it holds makes its descriptor ready no more."""

    def __init__(self, pipe: socket.socket, held: bytes) -> None:
        super().__init__(pipe)
        self._held = held

    def receive(self) -> bytes | None:
        held, self._held = self._held, b""
        return held or super().receive()


def test_what_a_stdio_holds_already_is_heard_though_its_descriptor_is_silent() -> None:
    (pipe, guest), (words, end) = socket.socketpair(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relay = Relay(Holding(pipe, frame(0, b"ready")), words)
    assert relay.await_ready(time.monotonic() + 2, lambda: True)
    relay.close()
    for each in (guest, end):
        each.close()


def _frames(data: bytes) -> int:
    """The frames that these bytes begin."""
    count = at = 0
    while at + 8 <= len(data):
        count, at = count + 1, at + 8 + struct.unpack_from(">II", data, at)[1]
    return count


def test_it_speaks_with_the_guests_own_mux_for_many_at_once(make: Callable[[], Sandbox]) -> None:
    sandboxes, data = [make() for _ in range(8)], os.urandom(WINDOW // 2)
    for each in sandboxes:
        each.guest.setblocking(False)
    muxes, inner = [Mux() for _ in sandboxes], [socket.socketpair() for _ in sandboxes]
    for mux, (near, _) in zip(muxes, inner):
        mux.open(1, near)
    senders = [threading.Thread(target=each.end.sendall, args=(data,)) for each in sandboxes]
    for each in senders:
        each.start()
    found = [bytearray() for _ in sandboxes]
    deadline = time.monotonic() + FOREVER
    while min(map(len, found)) < len(data) and time.monotonic() < deadline:
        for each, mux, (_, far), got in zip(sandboxes, muxes, inner, found):
            _turn(mux, each.guest)
            far.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                got += far.recv(1 << 20)
    for each in senders:
        each.join(FOREVER)
    for mux, (_, far) in zip(muxes, inner):
        mux.close_all()
        far.close()
    assert all(bytes(got) == data for got in found)


def _turn(mux: Mux, pipe: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        for _ in mux.feed(pipe.recv(65536)):
            pass
    readers, writers = mux.wants()
    mux.exchange({end.fileno() for end in (*readers, *writers)})
    with contextlib.suppress(BlockingIOError):
        while mux.out:
            del mux.out[: pipe.send(mux.out)]
