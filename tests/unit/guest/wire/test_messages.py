import contextlib
import os
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from agent_tools.runtime.kernel.zmtp import MAX_FRAMES, READ_SIZE, ZmtpSocket
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_tools.errors import ProtocolViolation
from agent_tools.runtime.kernel import zmtp

MIB = 1024 * 1024
LIMIT = 16 * MIB
SOON = 10.0  # seconds that nothing honest takes
MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

Message = list[bytes]
NewPair = Callable[..., tuple[ZmtpSocket, socket.socket]]


def soon() -> float:
    return time.monotonic() + SOON


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + struct.pack(">Q", len(body)) + body


def wire(*messages: Message) -> bytes:
    """The bytes of whole messages."""
    return b"".join(
        frame(part, MORE if index < len(message) - 1 else 0)
        for message in messages
        for index, part in enumerate(message)
    )


def take(receiver: ZmtpSocket, count: int) -> list[Message]:
    """So many messages; fewer if the peer hangs up."""
    found: list[Message] = []
    while len(found) < count and not receiver.is_closed:
        assert select.select([receiver], [], [], SOON)[0], f"only {len(found)} messages came"
        found += receiver.receive()
    return found


# -- a libzmq peer ----------------------------------------------------------------------------------------------------


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def connect(context: zmq.Context, peer_kind: int, limit: int = LIMIT) -> tuple[ZmtpSocket, zmq.Socket]:
    """A socket of ours, after its handshake, and a libzmq one that listens on a descriptor, as the kernel's do."""
    peer = context.socket(peer_kind)
    peer.set(zmq.SNDHWM, 0)
    peer.set(zmq.RCVHWM, 0)
    peer.set(zmq.RCVTIMEO, int(SOON * 1000))
    connected = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen(1)
        connected.connect(f"{folder}/s")
        peer.set(zmq.USE_FD, os.dup(listener.fileno()))
        peer.bind("ipc:///run/kernel/1")
    ours = ZmtpSocket(connected, "SUB" if peer_kind == zmq.XPUB else "DEALER", limit)
    ours.handshake(soon())
    return ours, peer


@pytest.fixture
def subscribed(context: zmq.Context) -> Iterator[tuple[ZmtpSocket, zmq.Socket]]:
    ours, publisher = connect(context, zmq.XPUB)
    assert publisher.recv() == b"\x01"  # to everything
    yield ours, publisher
    ours.close()


@pytest.fixture
def dealt(context: zmq.Context) -> Iterator[tuple[ZmtpSocket, zmq.Socket]]:
    ours, router = connect(context, zmq.ROUTER)
    yield ours, router
    ours.close()


MESSAGES = [
    pytest.param([b""], id="nothing"),
    pytest.param([b"", b"", b""], id="three times nothing"),
    pytest.param([b"x" * 255], id="the longest short frame"),
    pytest.param([b"x" * 256], id="the shortest long frame"),
    pytest.param([b"x" * 255, b"", b"y" * 256, b"\xff" * 1000], id="mixed"),
    pytest.param([b"x" * MIB], id="1 MiB"),
    pytest.param([b"x" * MIB, b"y", b"z" * MIB], id="two of 1 MiB"),
    pytest.param([b"x"] * MAX_FRAMES, id="as many parts as may be"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_libzmq_publishes_is_received(subscribed: tuple[ZmtpSocket, zmq.Socket], message: Message) -> None:
    ours, publisher = subscribed
    publisher.send_multipart(message)
    publisher.send_multipart([b"next"])
    assert take(ours, 2) == [message, [b"next"]]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_sent_reaches_libzmq_and_its_answer_comes_back(
    dealt: tuple[ZmtpSocket, zmq.Socket], message: Message
) -> None:
    ours, router = dealt
    ours.send(message)
    ours.send([b"next"])
    identity, *parts = router.recv_multipart()
    assert (parts, router.recv_multipart()) == (message, [identity, b"next"])
    router.send_multipart([identity, *message])
    assert take(ours, 1) == [message]


def test_many_small_messages_come_in_order(subscribed: tuple[ZmtpSocket, zmq.Socket]) -> None:
    ours, publisher = subscribed
    messages = [[b"topic", b"%d" % number] for number in range(20_000)]
    for message in messages:
        publisher.send_multipart(message)
    assert take(ours, len(messages)) == messages


def test_many_requests_reach_libzmq_in_order(dealt: tuple[ZmtpSocket, zmq.Socket]) -> None:
    ours, router = dealt
    for number in range(2_000):
        ours.send([b"", b"%d" % number])
    assert [int(router.recv_multipart()[2]) for _ in range(2_000)] == list(range(2_000))


def test_libzmq_is_seen_to_hang_up_after_its_last_message(subscribed: tuple[ZmtpSocket, zmq.Socket]) -> None:
    ours, publisher = subscribed
    publisher.send(b"last")
    assert take(ours, 1) == [[b"last"]]
    assert not ours.is_closed
    publisher.close(linger=0)
    assert take(ours, 1) == []
    assert ours.is_closed


def test_libzmqs_message_over_the_limit_is_a_violation(context: zmq.Context) -> None:
    ours, publisher = connect(context, zmq.XPUB, limit=MIB)
    publisher.recv()
    publisher.send_multipart([b"x" * MIB])
    assert take(ours, 1) == [[b"x" * MIB]]
    publisher.send_multipart([b"x" * MIB, b"y"])
    with pytest.raises(ProtocolViolation, match="over 1,048,576 bytes"):
        take(ours, 1)
    ours.close()
    publisher.close(linger=0)


# -- a raw peer: the handshake ----------------------------------------------------------------------------------------


@pytest.fixture
def new_pair() -> Iterator[NewPair]:
    """Makes sockets of ours, each with a raw peer."""
    with contextlib.ExitStack() as opened:

        def make(limit: int = LIMIT) -> tuple[ZmtpSocket, socket.socket]:
            connected, peer = socket.socketpair()
            opened.callback(connected.close)
            opened.callback(peer.close)
            return ZmtpSocket(connected, "DEALER", limit), peer

        yield make


def altered(place: int, new: bytes) -> bytes:
    return GREETING[:place] + new + GREETING[place + len(new) :]


@pytest.mark.parametrize(
    "greeting",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n".ljust(64), id="HTTP"),
        pytest.param(bytes(64), id="NULs"),
        pytest.param(b"\xff" * 64, id="ones"),
        pytest.param(altered(0, b"\0"), id="another signature"),
        pytest.param(altered(9, b"\x7e"), id="another end of the signature"),
        pytest.param(altered(10, b"\x00"), id="version 1"),
        pytest.param(altered(10, b"\x01"), id="version 2"),
        pytest.param(altered(12, b"PLAIN"), id="PLAIN"),
        pytest.param(altered(12, b"CURVE"), id="CURVE"),
        pytest.param(altered(12, b"NULLIFY"), id="a mechanism that starts like ours"),
    ],
)
def test_another_greeting_is_a_violation(new_pair: NewPair, greeting: bytes) -> None:
    ours, peer = new_pair()
    peer.sendall(greeting)
    with pytest.raises(ProtocolViolation):
        ours.handshake(soon())


def test_a_later_version_is_taken(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.sendall(altered(10, b"\x04\x07"))
    ours.handshake(soon())
    assert peer.recv(1000).startswith(GREETING)


@pytest.mark.parametrize("sent", [0, 1, 10, 63])
@pytest.mark.parametrize("patience", [0.05, 0.0, -1.0])
def test_a_silent_peer_is_not_waited_for(new_pair: NewPair, sent: int, patience: float) -> None:
    ours, peer = new_pair()
    peer.sendall(GREETING[:sent])
    with pytest.raises(TimeoutError):
        ours.handshake(time.monotonic() + patience)


def test_hanging_up_before_the_handshake_is_a_violation(new_pair: NewPair) -> None:
    for sent in range(len(GREETING)):
        ours, peer = new_pair()
        peer.sendall(GREETING[:sent])
        peer.close()
        with pytest.raises(ProtocolViolation):
            ours.handshake(soon())


def leave(peer: socket.socket, reads: bool) -> None:
    """Wait for the greeting, read it or not, and hang up."""
    select.select([peer], [], [], SOON)
    if reads:
        peer.recv(1000)
    peer.close()


@pytest.mark.parametrize("reads", [True, False])
def test_hanging_up_during_the_handshake_is_a_violation(new_pair: NewPair, reads: bool) -> None:
    for sent in range(len(GREETING)):
        ours, peer = new_pair()
        peer.sendall(GREETING[:sent])
        leaving = threading.Thread(target=leave, args=(peer, reads))
        leaving.start()
        with pytest.raises(ProtocolViolation):
            ours.handshake(soon())
        leaving.join()


@pytest.mark.parametrize("kind", ["DEALER", "SUB"])
def test_the_handshake_says_what_we_are(kind: str) -> None:
    connected, peer = socket.socketpair()
    with connected, peer:
        peer.sendall(GREETING)
        ZmtpSocket(connected, kind, LIMIT).handshake(soon())  # type: ignore[arg-type]
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind.encode()
        subscription = frame(b"\x01") if kind == "SUB" else b""
        assert peer.recv(1000) == GREETING + frame(ready, COMMAND) + subscription


# -- a raw peer: limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [LONG, LONG | MORE, LONG | COMMAND, LONG | COMMAND | MORE])
@pytest.mark.parametrize("size", [LIMIT + 1, 2**32, 2**63, 2**64 - 1])
def test_a_frame_over_the_limit_is_refused_before_it_is_sent(new_pair: NewPair, flags: int, size: int) -> None:
    ours, peer = new_pair()
    peer.sendall(bytes((flags,)) + struct.pack(">Q", size))
    with pytest.raises(ProtocolViolation, match="over 16,777,216 bytes"):
        list(ours.receive())


def test_parts_that_are_together_over_the_limit_are_refused_before_they_are_sent(new_pair: NewPair) -> None:
    ours, peer = new_pair(limit=1000)
    peer.sendall(wire([b"x" * 600, b"y" * 400]) + frame(b"x" * 600, MORE) + b"\x02" + struct.pack(">Q", 401))
    received = ours.receive()
    assert next(received) == [b"x" * 600, b"y" * 400]
    with pytest.raises(ProtocolViolation, match="over 1,000 bytes"):
        next(received)


@pytest.mark.parametrize(("part", "limit"), [(b"", LIMIT), (b"x", LIMIT), (b"x" * 5000, 100_000)])
def test_a_message_without_an_end_is_refused(new_pair: NewPair, part: bytes, limit: int) -> None:
    ours, peer = new_pair(limit=limit)
    for _ in range(min(MAX_FRAMES, limit // max(1, len(part)))):
        peer.sendall(frame(part, MORE))
        assert list(ours.receive()) == []
    peer.sendall(frame(part, MORE))
    with pytest.raises(ProtocolViolation):
        list(ours.receive())


def test_a_flood_of_empty_parts_in_one_read_is_refused(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.sendall(frame(b"", MORE) * 10_000)
    with pytest.raises(ProtocolViolation, match=f"or {MAX_FRAMES} parts"):
        list(ours.receive())


def test_limits_are_of_one_message_and_not_of_all(new_pair: NewPair) -> None:
    ours, peer = new_pair(limit=1000)
    messages = [[b"x" * 10] * MAX_FRAMES, [b"y" * 1000]] * 20
    peer.sendall(wire(*messages))
    assert take(ours, len(messages)) == messages


@pytest.mark.parametrize("flags", [8, 16, 32, 64, 128, 255, 8 | MORE, 128 | COMMAND])
def test_reserved_flags_are_a_violation(new_pair: NewPair, flags: int) -> None:
    ours, peer = new_pair()
    peer.sendall(wire([b"good"]) + bytes((flags, 0)))
    received = ours.receive()
    assert next(received) == [b"good"]
    with pytest.raises(ProtocolViolation, match="not ZeroMQ's"):
        next(received)


@pytest.mark.parametrize("flags", [COMMAND, COMMAND | MORE])
@pytest.mark.parametrize("size", [0, 5, 255, 256, 5000])
def test_commands_are_dropped_wherever_they_come(new_pair: NewPair, flags: int, size: int) -> None:
    ours, peer = new_pair()
    command = frame(b"c" * size, flags)
    peer.sendall(command * 5 + frame(b"a", MORE) + command + frame(b"b") + command)
    assert take(ours, 1) == [[b"a", b"b"]]


def test_many_large_commands_are_not_kept(new_pair: NewPair) -> None:
    ours, peer = new_pair(limit=100_000)
    for _ in range(50):
        peer.sendall(frame(bytes(100_000), COMMAND))
        assert list(ours.receive()) == []
    peer.sendall(wire([b"after"]))
    assert take(ours, 1) == [[b"after"]]


# -- a raw peer: pieces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [[b"ab"], [b"", b"a", b""], [b"x" * 300, b"yz"]])
def test_a_message_cut_by_a_hang_up_is_never_delivered(new_pair: NewPair, message: Message) -> None:
    for cut in range(len(wire(message))):
        ours, peer = new_pair()
        peer.sendall(wire([b"whole"]) + wire(message)[:cut])
        peer.close()
        assert take(ours, 10) == [[b"whole"]]
        assert ours.is_closed


ANY_MESSAGES = st.lists(
    st.lists(st.binary(max_size=20) | st.integers(250, 600).map(bytes), min_size=1, max_size=6), max_size=8
)


@settings(deadline=None)
@given(ANY_MESSAGES, st.lists(st.integers(1, 700), max_size=30))
@example([[b"ab", b"", bytes(300)], [b""]], [1] * 400)
def test_pieces_of_any_size_make_the_same_messages(messages: list[Message], sizes: list[int]) -> None:
    data, found = wire(*messages), []
    connected, peer = socket.socketpair()
    with connected, peer:
        ours = ZmtpSocket(connected, "SUB", LIMIT)
        for size in [*sizes, len(data)]:
            peer.sendall(data[:size])
            data = data[size:]
            found += ours.receive()
    assert found == messages


@settings(deadline=None)
@given(ANY_MESSAGES)
def test_whatever_is_sent_is_received(messages: list[Message]) -> None:
    pair = socket.socketpair()
    with pair[0], pair[1]:
        sender, receiver = (ZmtpSocket(each, "DEALER", LIMIT) for each in pair)
        for message in messages:
            sender.send(message)
        assert take(receiver, len(messages)) == messages
        assert list(receiver.receive()) == []


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_arbitrary_bytes_raise_only_violations(data: bytes) -> None:
    connected, peer = socket.socketpair()
    with connected, peer, contextlib.suppress(ProtocolViolation):
        peer.sendall(data)
        for message in ZmtpSocket(connected, "SUB", LIMIT).receive():
            assert 0 < len(message) <= MAX_FRAMES


def test_one_read_takes_a_bounded_amount(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(1000):
            peer.send(wire([bytes(1000)]))
    assert sum(len(part) for (part,) in ours.receive()) <= READ_SIZE


def test_nothing_there_is_nothing_and_no_hang_up(new_pair: NewPair) -> None:
    ours, _ = new_pair()
    assert list(ours.receive()) == []
    ours.skip()
    assert not ours.is_closed


def test_skipping_keeps_in_step(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    data = wire([b"dropped", b"too"], [b"kept", b"x" * 300])
    peer.sendall(data[:20])
    ours.skip()
    peer.sendall(data[20:])
    assert take(ours, 1) == [[b"kept", b"x" * 300]]


def test_skipping_has_the_same_limits(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.sendall(frame(b"", MORE) * (MAX_FRAMES + 1))
    with pytest.raises(ProtocolViolation):
        ours.skip()


def test_messages_left_by_a_reader_that_stopped_come_with_the_next_read(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.sendall(wire([b"1"], [b"2"], [b"3"]))
    assert next(iter(ours.receive())) == [b"1"]
    assert list(ours.receive()) == [[b"2"], [b"3"]]


# -- a raw peer: sending ----------------------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_is_seen_as_closed(new_pair: NewPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmtp, "SEND_SECONDS", 0.05)
    ours, _ = new_pair()
    ours.send([bytes(4 * MIB)])
    assert ours.is_closed


def test_nothing_follows_a_message_that_was_cut_short(new_pair: NewPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmtp, "SEND_SECONDS", 0.05)
    ours, peer = new_pair()
    ours.send([bytes(4 * MIB)])
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while peer.recv(MIB):
            pass
    ours.send([b"next"])
    with pytest.raises(BlockingIOError):
        peer.recv(1000)


def test_sending_to_a_peer_that_is_gone_is_no_error(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.close()
    ours.send([b"request"])
    assert ours.is_closed


def test_a_closed_socket_takes_and_gives_nothing(new_pair: NewPair) -> None:
    ours, peer = new_pair()
    peer.sendall(wire([b"unread"]))
    ours.close()
    ours.close()
    ours.send([b"request"])
    ours.skip()
    assert (list(ours.receive()), ours.is_closed) == ([], True)
