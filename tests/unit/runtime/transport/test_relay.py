"""The thread between a sandbox's stdio and local sockets, with the guest's end of the pipe in the test's hand."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agent_tools.guest.wire.framing import WINDOW
from agent_tools.guest.wire.lines import MAX_LINE
from agent_tools.guest.wire.mux import MAX_FRAME, Mux
from agent_tools.runtime.transport.relay import Relay
from agent_tools.runtime.transport.socket_stdio import SocketStdio

FOREVER = 10.0  # seconds: only a failing test waits this long


def frame(channel: int, payload: bytes = b"") -> bytes:
    return struct.pack(">II", channel, len(payload)) + payload


class Rig:
    """A relay; `guest` is the far end of its pipe, `words` that of its words."""

    def __init__(self) -> None:
        pipe, self.guest = socket.socketpair()
        self.words, words = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.guest, self.words):
            end.settimeout(FOREVER)
        self.ends: list[socket.socket] = []
        self.relay = Relay(SocketStdio(pipe), words)

    def carry(self, channel: int) -> socket.socket:
        end, other = socket.socketpair()
        end.settimeout(FOREVER)
        self.ends.append(end)
        self.relay.carry(channel, other)
        return end

    def read_frame(self) -> tuple[int, bytes]:
        channel, length = struct.unpack(">II", self._read(8))
        return channel, self._read(length)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.guest.recv(size - len(data))
            assert piece, "the relay hung up"
            data += piece
        return data

    def has_hung_up(self) -> bool:
        """Return whether the pipe ends, whatever is still in it."""
        try:
            while self.guest.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.relay.close()
        for end in (self.guest, self.words, *self.ends):
            end.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_the_first_word_makes_it_ready(rig: Rig) -> None:
    rig.guest.sendall(frame(0, b"ready"))
    assert rig.relay.await_ready(time.monotonic() + FOREVER, lambda: True)


@pytest.mark.parametrize(
    "ending",
    [lambda rig: rig.guest.close(), lambda rig: rig.guest.sendall(os.urandom(4).replace(b"\0", b"x") + b"\xff" * 99)],
    ids=["hangs up", "speaks noise"],
)
def test_a_guest_that_never_is_ready_is_not_waited_for(rig: Rig, ending: Callable[[Rig], None]) -> None:
    ending(rig)
    assert not rig.relay.await_ready(time.monotonic() + FOREVER, lambda: True)


def test_a_guest_that_is_said_to_be_gone_is_not_waited_for(rig: Rig) -> None:
    assert not rig.relay.await_ready(time.monotonic() + FOREVER, lambda: False)
    assert not rig.relay.await_ready(time.monotonic(), lambda: True)


def test_words_pass_both_ways_one_by_one(rig: Rig) -> None:
    rig.words.send(b"kill")
    rig.words.send(b"disarm")
    assert [rig.read_frame(), rig.read_frame()] == [(0, b"kill"), (0, b"disarm")]
    rig.guest.sendall(frame(0, b"exit 1 0 0 0 /tmp 0 0") + frame(0) + frame(0, b"x" * MAX_FRAME) + frame(0, b"last"))
    assert rig.words.recv(MAX_FRAME) == b"exit 1 0 0 0 /tmp 0 0"
    assert rig.words.recv(MAX_FRAME) == b"x" * MAX_LINE
    assert rig.words.recv(MAX_FRAME) == b"last"


def test_an_order_goes_out_before_the_first_bytes_of_its_channel(rig: Rig) -> None:
    for number in range(1, 200):
        end = rig.carry(number)
        for words in (b"disarm", b"interrupt", b"files %d" % number):
            rig.words.send(words)
        end.send(b"request")
        assert [rig.read_frame()[1] for _ in range(4)] == [b"disarm", b"interrupt", b"files %d" % number, b"request"]


def test_bytes_pass_both_ways_and_so_do_ends(rig: Rig) -> None:
    end, other = rig.carry(1), rig.carry(2)
    end.send(b"in")
    assert rig.read_frame() == (1, b"in")
    rig.guest.sendall(frame(1, b"out"))
    assert end.recv(100) == b"out"
    rig.guest.sendall(frame(1))
    assert end.recv(100) == b""
    other.close()
    assert rig.read_frame() == (2, b"")


def test_a_flood_of_words_that_nobody_reads_is_dropped_and_the_rest_goes_on(rig: Rig) -> None:
    end = rig.carry(1)
    for _ in range(2000):
        rig.guest.sendall(frame(0, bytes(MAX_LINE)))
    rig.guest.sendall(frame(1, b"still here"))
    assert end.recv(100) == b"still here"


@pytest.mark.parametrize(
    "data",
    [frame(1, bytes(MAX_FRAME)) * (4 * WINDOW // MAX_FRAME), struct.pack(">II", 0, 1 << 31), frame(0x80000001, b"1")],
    ids=["more than a window", "an endless word", "half a grant"],
)
def test_a_guest_that_breaks_the_protocol_is_hung_up_on(rig: Rig, data: bytes) -> None:
    end = rig.carry(1)
    with contextlib.suppress(ConnectionError):
        rig.guest.sendall(data)
    assert rig.has_hung_up()
    assert rig.words.recv(100) == b""
    end.settimeout(FOREVER)
    while end.recv(1 << 20):
        pass


def test_a_guest_that_reads_nothing_holds_a_bounded_lot(rig: Rig) -> None:
    ends = [rig.carry(channel) for channel in range(1, 20)]
    taken = 0
    for end in ends:
        end.settimeout(0.05)
        try:
            for _ in range(100):
                taken += end.send(bytes(65536))
        except TimeoutError:
            pass
    assert taken < 32 << 20
    assert len(rig.relay._mux.out) < 5 << 20


def test_a_socket_that_comes_after_the_end_is_closed(rig: Rig) -> None:
    rig.guest.close()
    assert not rig.relay.await_ready(time.monotonic() + FOREVER, lambda: True)
    assert rig.carry(1).recv(100) == b""
    rig.relay.close()
    assert rig.carry(2).recv(100) == b""


def test_the_lifelines_end_hangs_up(rig: Rig) -> None:
    rig.words.close()
    assert rig.has_hung_up()


def test_closing_ends_the_thread_and_every_descriptor() -> None:
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    rig = Rig()
    rig.carry(1)
    rig.close()
    rig.relay.close()
    deadline = time.monotonic() + FOREVER
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, fds)


def test_a_forked_child_holds_nothing_of_it(rig: Rig) -> None:
    end = rig.carry(1)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reader, 1)
        os._exit(0)
    rig.relay.close()
    try:
        assert rig.has_hung_up()  # though the child lives
        assert end.recv(1) == b""
    finally:
        os.write(writer, b"x")
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_it_speaks_with_the_guests_own_mux(rig: Rig) -> None:
    """Several MiB each way at once through both ends, with the guest's side driven as PID 1 drives it."""
    size = 3 * WINDOW + 12345
    host_end = rig.carry(1)
    guest_mux = Mux()
    inner, guest_end = socket.socketpair()
    guest_mux.open(1, inner)
    found: dict[str, bytes] = {}
    data = os.urandom(size)
    ends = {"host": host_end, "guest": guest_end}

    def read(name: str) -> None:
        got = bytearray()
        while len(got) < size and (piece := ends[name].recv(65536)):
            got += piece
        found[name] = bytes(got)

    guest_end.settimeout(FOREVER)
    workers = [threading.Thread(target=read, args=(name,)) for name in ends]
    workers += [threading.Thread(target=end.sendall, args=(data,)) for end in ends.values()]
    for worker in workers:
        worker.start()
    rig.guest.setblocking(False)
    deadline = time.monotonic() + FOREVER
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        _turn(guest_mux, rig.guest)
    for worker in workers:
        worker.join()
    guest_mux.close_all()
    guest_end.close()
    assert found == {"host": data, "guest": data}


def _turn(mux: Mux, pipe: socket.socket) -> None:
    try:
        for _ in mux.feed(pipe.recv(65536)):
            pass
    except BlockingIOError:
        time.sleep(0.0005)
    readers, writers = mux.wants()
    mux.exchange({end.fileno() for end in (*readers, *writers)})
    try:
        while mux.out:
            del mux.out[: pipe.send(mux.out)]
    except BlockingIOError:
        pass
