"""The host's end of the socket: messages in, answers out, and what happens when the guest stops reading or talking."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from agent_tools.guest.wire.calls import CallReader, pack
from agent_tools.runtime.host_calls.loop import CallLoop
from agent_tools.runtime.host_calls.wire import MAX_UNREAD, CallWire
from tests.waiting import until


@pytest.fixture
def ends() -> Iterator[tuple[CallWire, socket.socket, queue.Queue[object], CallLoop]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    loop, taken = CallLoop(1), queue.Queue[object]()
    wire = CallWire(ours, 1 << 20)
    wire.start(lambda: loop.loop, lambda head, attachments, size: taken.put((head, attachments)))
    yield wire, theirs, taken, loop
    wire.close()
    theirs.close()
    loop.close()


def test_messages_are_taken_in_order(ends) -> None:  # type: ignore[no-untyped-def]
    _, theirs, taken, _ = ends
    for number in range(100):
        theirs.sendall(pack({"n": number}, [bytes([number])]))
    assert [taken.get(timeout=10) for _ in range(100)] == [({"n": each}, [bytes([each])]) for each in range(100)]


def test_answers_larger_than_the_socket_arrive_whole_and_in_order(ends) -> None:  # type: ignore[no-untyped-def]
    wire, theirs, _, _ = ends
    sender = threading.Thread(target=lambda: [wire.send(pack({"n": n}, [bytes([n]) * 2**20])) for n in range(8)])
    sender.start()
    sender.join(10)
    assert not sender.is_alive(), "sending waited for the reader"
    reader, found = CallReader(1 << 21), []
    while len(found) < 8:
        found += [(head["n"], len(parts[0])) for head, parts, _ in reader.feed(theirs.recv(1 << 20))]
    assert found == [(number, 2**20) for number in range(8)]


def test_a_guest_that_breaks_the_protocol_is_hung_up_on(ends) -> None:  # type: ignore[no-untyped-def]
    _, theirs, _, _ = ends
    theirs.sendall(b"\xff" * 8)
    assert theirs.recv(1) == b""


def test_answers_are_too_many_until_the_guest_reads_them(ends) -> None:  # type: ignore[no-untyped-def]
    wire, theirs, _, _ = ends
    wire.send(bytes(MAX_UNREAD))
    assert not wire.is_crowded, "the socket took some of it"
    wire.send(bytes(2**20))
    assert wire.is_crowded
    left = MAX_UNREAD + 2**20
    while left:
        left -= len(theirs.recv(1 << 22))
    until(lambda: not wire.is_crowded)


def test_a_guest_that_leaves_too_much_unread_is_hung_up_on(ends) -> None:  # type: ignore[no-untyped-def]
    wire, theirs, _, _ = ends
    for _ in range(3):
        wire.send(bytes(MAX_UNREAD))
    while True:
        try:
            if not theirs.recv(1 << 22):
                break
        except ConnectionResetError:
            break
    wire.send(b"nobody is there")
    assert not wire.is_crowded, "nobody should wait for it"


def test_closing_twice_and_sending_afterwards_do_nothing(ends) -> None:  # type: ignore[no-untyped-def]
    wire, theirs, _, _ = ends
    wire.close()
    wire.close()
    wire.send(b"x")
    assert theirs.recv(1) == b""
