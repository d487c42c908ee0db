"""Words between two ends of one process, as over a SEQPACKET pair."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from agent_tools.guest.wire.sockets import await_hang_up, await_input
from agent_tools.runtime.transport.datagram_pair import MAX_WAITING, DatagramSocket, datagram_pair

Pair = tuple[DatagramSocket, DatagramSocket]


@pytest.fixture(params=["queue", "seqpacket"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    one, other = (
        datagram_pair() if request.param == "queue" else socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    with contextlib.closing(one), contextlib.closing(other):
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


def test_words_come_whole_and_in_order_both_ways(pair: Pair) -> None:
    one, other = pair
    assert [one.send(words) for words in (b"first", b"second one")] == [5, 10]
    other.send(b"back")
    assert [other.recv(100), other.recv(3), one.recv(100)] == [b"first", b"sec", b"back"]
    for end in pair:
        with pytest.raises(BlockingIOError):
            end.recv(100)


def test_they_can_be_waited_for(pair: Pair) -> None:
    one, other = pair
    assert not await_input(other.fileno(), 0)
    one.send(b"x")
    assert await_input(other.fileno(), 5)
    assert not await_hang_up(other.fileno(), 0)


def test_the_end_comes_after_the_last_words(pair: Pair) -> None:
    one, other = pair
    one.send(b"last")
    one.close()
    assert await_hang_up(other.fileno(), 5)
    assert [other.recv(100), other.recv(100), other.recv(100)] == [b"last", b"", b""]
    with pytest.raises(OSError, match=r".*"):
        other.send(b"nobody hears it")


def test_what_nobody_takes_is_bounded(pair: Pair) -> None:
    one, other = pair
    with contextlib.suppress(BlockingIOError):
        for _ in range(10_000):
            one.send(b"x")
    with pytest.raises(BlockingIOError):
        one.send(b"x")
    assert other.recv(100) == b"x"


def test_the_bound_is_what_it_says() -> None:
    one, other = datagram_pair()
    with contextlib.closing(one), contextlib.closing(other):
        for _ in range(MAX_WAITING):
            one.send(b"x")
        with pytest.raises(BlockingIOError):
            one.send(b"x")


def test_many_may_send_at_once() -> None:
    one, other = datagram_pair()
    with contextlib.closing(one), contextlib.closing(other):
        threads = [threading.Thread(target=one.send, args=(str(number).encode(),)) for number in range(50)]
        for thread in threads:
            thread.start()
        heard = {other.recv(100) for _ in threads}
        for thread in threads:
            thread.join()
    assert heard == {str(number).encode() for number in range(50)}
