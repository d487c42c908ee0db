"""The choice of the way to a sandbox."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from agent_tools.engines.engine import Stdio
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation, Wall
from agent_tools.guest.wire.mux import Mux
from agent_tools.guest.wire.sockets import SO_PASSRIGHTS
from agent_tools.guest.wire.words import Files, Kill, SocketOrder, Start
from agent_tools.runtime.transport.socket_stdio import SocketStdio
from agent_tools.runtime.transport.transport import SocketTransport, StdioTransport, Transport, TransportName, choose

FOREVER = 10.0  # seconds: only a failing test waits this long
ME = (os.getuid(), os.getgid())
CHOICES: list[tuple[TransportName, bool, bool, str | None, type]] = [
    # asked for, sockets are shared, files are shared, OCI runtime, what it is
    ("auto", True, True, None, SocketTransport),
    ("auto", True, True, "runc", SocketTransport),
    ("auto", True, True, "crun", SocketTransport),
    ("auto", True, True, "runsc", StdioTransport),
    ("auto", True, True, "kata", StdioTransport),
    ("auto", True, True, "of my own", StdioTransport),
    ("auto", False, True, None, StdioTransport),
    ("auto", False, False, None, StdioTransport),
    ("sockets", True, True, "runsc", SocketTransport),
    ("sockets", False, True, None, SocketTransport),
    ("stdio", True, True, None, StdioTransport),
    ("stdio", False, False, "kata", StdioTransport),
]


def descriptors() -> set[str]:
    """All that are open, without garbage; the guest's side may close some of its own at any time."""
    gc.collect()
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{each} {os.readlink(f'/proc/self/fd/{each}')}")
    return found


def test_auto_takes_stdio_where_the_engines_default_runtime_has_a_kernel_of_its_own() -> None:
    made = [
        (wall, runtimes, choose("auto", Guest(ME, ME, runtimes=runtimes), Isolation(isolation=wall)))
        for wall in get_args(Wall)
        for runtimes in (("runc", "runsc"), ("runsc", "runc"), ("nvidia",), ("of my own",), ())
    ]
    for _, _, transport in made:
        transport.close()
    stdio = [(wall, runtimes[:1]) for wall, runtimes, transport in made if isinstance(transport, StdioTransport)]
    assert stdio[0] == ("auto", ("runsc",))
    assert {wall for wall, _ in stdio[1:]} == {"gvisor"}
    assert len(stdio) == 6


@pytest.mark.parametrize(("wanted", "sockets", "files", "runtime", "kind"), CHOICES)
def test_the_choice(wanted: TransportName, sockets: bool, files: bool, runtime: str | None, kind: type) -> None:
    guest = Guest(ME, ME, shares_sockets=sockets, shares_files=files)
    before = descriptors()
    transport = choose(wanted, guest, Isolation(runtime=runtime))
    assert type(transport) is kind
    assert (transport.run_dir is None) == (kind is StdioTransport)
    transport.close()
    assert descriptors() <= before


def test_a_transport_that_never_met_its_guest_is_closed_twice() -> None:
    for transport in (SocketTransport(), StdioTransport()):
        transport.close()
        transport.close()


ORDERS: list[SocketOrder] = [Start(1), Files(2), Start(3)]


class Met:
    """A transport that has met its guest; `receive` gives what PID 1 gets with an order: the line and its sockets."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        self._opened = opened

    def receive(self) -> tuple[bytes, list[socket.socket]]:
        raise NotImplementedError

    def meet(self, transport: Transport, stdio: Stdio | None) -> None:
        lifeline = transport.await_guest(stdio, time.monotonic() + FOREVER, lambda: True)
        assert lifeline
        self.transport, self.lifeline = transport, lifeline
        self._opened.callback(transport.close)


class OverSockets(Met):
    def __init__(self, opened: contextlib.ExitStack) -> None:
        super().__init__(opened)
        transport = SocketTransport()
        self.guest = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self.guest.settimeout(FOREVER)
        assert transport.run_dir
        self.guest.connect(str(transport.run_dir / "init.sock"))
        self.meet(transport, None)

    def receive(self) -> tuple[bytes, list[socket.socket]]:
        line, descriptors, _, _ = socket.recv_fds(self.guest, 100, 5)
        for page in descriptors[2:]:  # of the alarm
            os.close(page)
        return line, [self._opened.enter_context(socket.socket(fileno=each)) for each in descriptors[:2]]


class OverStdio(Met):
    """The guest's side is its own mux, driven by a thread."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        super().__init__(opened)
        pipe, self.guest = socket.socketpair()
        self._mux, self._lines = Mux(), queue.Queue[tuple[bytes, list[socket.socket]]]()
        self._mux.say(b"ready")
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()
        opened.callback(self._thread.join)
        self.meet(StdioTransport(), SocketStdio(pipe))

    def receive(self) -> tuple[bytes, list[socket.socket]]:
        return self._lines.get(timeout=FOREVER)

    def _carry(self) -> None:
        self.guest.setblocking(False)
        with self.guest, contextlib.suppress(OSError):
            while True:
                self._move()
        self._mux.close_all()

    def _move(self) -> None:
        readers, writers = self._mux.wants()
        ready, _, _ = select.select([self.guest, *readers], writers, [], 0.01)
        if self.guest in ready:
            data = self.guest.recv(1 << 20)
            if not data:
                raise OSError("the host hung up")
            for line in self._mux.feed(data):
                self._lines.put((line, [self._socket(channel) for channel in self._channels(line)]))
        self._mux.exchange({end.fileno() for end in (*readers, *writers)})
        while self._mux.out:
            del self._mux.out[: self.guest.send(self._mux.out)]

    def _channels(self, line: bytes) -> list[int]:
        word, _, number = line.decode().partition(" ")
        first = 3 * int(number or 0)
        return list(range(first, first + {"start": 2, "files": 1}.get(word, 0)))

    def _socket(self, channel: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._mux.open(channel, ours)
        theirs.settimeout(FOREVER)
        return self._opened.enter_context(theirs)


@pytest.fixture(params=[OverSockets, OverStdio])
def met(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Met]:
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder, contextlib.ExitStack() as opened:
        monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", folder)
        yield request.param(opened)


def opened_by(met: Met, order: SocketOrder) -> tuple[list[socket.socket], bytes, list[socket.socket]]:
    """Our ends, the line that PID 1 gets, and its ends."""
    ours = met.transport.open(order, met.lifeline)
    assert ours is not None
    for end in ours:
        end.settimeout(FOREVER)
    line, theirs = met.receive()
    return ours, line, theirs


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_the_sockets_of_an_order_are_connected_one_to_one(met: Met, order: SocketOrder) -> None:
    ours, line, theirs = opened_by(met, order)
    assert line == f"{type(order).__name__.lower()} {order.number}".encode()
    assert len(ours) == len(theirs) == order.sockets
    for number, (end, other) in enumerate(zip(ours, theirs)):
        with end:
            end.sendall(b"request %d" % number)
            other.sendall(b"reply %d" % number)
            assert (other.recv(100), end.recv(100)) == (b"request %d" % number, b"reply %d" % number)


def test_the_sockets_of_several_orders_are_apart(met: Met) -> None:
    found = [opened_by(met, order) for order in ORDERS]
    for number, (ours, _, _) in enumerate(found):
        for place, end in enumerate(ours):
            end.sendall(bytes((number, place)))
    for number, (ours, _, theirs) in enumerate(found):
        for place, end in enumerate(theirs):
            assert end.recv(100) == bytes((number, place))
        for end in ours:
            end.close()


def test_hanging_up_one_socket_is_seen_and_leaves_the_other(met: Met) -> None:
    (messages, calls), _, (their_messages, their_calls) = opened_by(met, Start(1))
    their_messages.close()
    assert messages.recv(100) == b""
    their_calls.sendall(b"x")
    assert calls.recv(100) == b"x"
    calls.close()
    assert their_calls.recv(100) == b""
    messages.close()


def test_words_go_both_ways(met: Met) -> None:
    assert met.lifeline.send(Kill())
    assert met.receive() == (b"kill", [])


def test_an_order_to_a_guest_that_is_gone_opens_nothing(met: Met) -> None:
    met.transport.close()
    before = descriptors()
    assert met.transport.open(Start(1), met.lifeline) is None
    assert descriptors() <= before


def test_a_channels_name_tells_nothing_of_the_host(met: Met) -> None:
    ours, _, theirs = opened_by(met, Start(1))
    names = {name for end in theirs for name in (end.getsockname(), end.getpeername())}
    assert names == {""}
    for end in ours:
        end.close()


def takes_descriptors(end: socket.socket) -> bool:
    """Return whether descriptors can be sent to the other end of a socket."""
    try:
        return bool(socket.send_fds(end, [b"x"], [end.fileno()]))
    except PermissionError:
        return False


def can_refuse_descriptors() -> bool:
    """Return whether sockets of this machine can, from Linux 6.16 on."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as end:
        end.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        return True
    return False


def test_our_ends_take_no_descriptors() -> None:
    with contextlib.ExitStack() as opened:
        ours, _, theirs = opened_by(OverSockets(opened), Start(1))
        assert [takes_descriptors(end) for end in theirs] == [not can_refuse_descriptors()] * Start.sockets
        for end in ours:
            end.close()


def test_a_channel_leaves_nothing_on_disk(met: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    top = Path(os.environ["AGENT_TOOLS_RUN_DIR"])
    before = sorted(top.rglob("*"))
    for number in range(1, 5):
        ours, _, _ = opened_by(met, Start(number))
        assert sorted(top.rglob("*")) == before
        for end in ours:
            end.close()


def test_closing_hangs_up_on_the_guest() -> None:
    with contextlib.ExitStack() as opened:
        met = OverSockets(opened)
        met.transport.close()
        assert met.guest.recv(100) == b""
        assert met.transport.run_dir is not None
        assert not met.transport.run_dir.exists()


def test_a_relay_that_cannot_be_started_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("agent_tools.runtime.transport.transport.Relay", fail)
    ours, theirs = socket.socketpair()
    with theirs, contextlib.closing(StdioTransport()) as transport:
        with pytest.raises(RuntimeError):
            transport.await_guest(SocketStdio(ours), time.monotonic() + FOREVER, lambda: True)
        theirs.settimeout(FOREVER)
        assert theirs.recv(1) == b""
