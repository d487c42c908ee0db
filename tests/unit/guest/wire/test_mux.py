"""Frames, windows and ends of the streams that share one pipe."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_tools.guest.wire.framing import WINDOW, FrameError
from agent_tools.guest.wire.mux import CREDIT, MAX_FRAME, MAX_OUT, Mux

FOREVER = 10.0  # seconds: only a failing test waits this long


def frame(channel: int, payload: bytes = b"") -> bytes:
    return struct.pack(">II", channel, len(payload)) + payload


class Side:
    """A mux with one stream, and the far end of that stream's socket."""

    def __init__(self, *channels: int) -> None:
        self.mux = Mux()
        self.ends: dict[int, socket.socket] = {}
        for channel in channels:
            ours, self.ends[channel] = socket.socketpair()
            self.ends[channel].setblocking(False)
            self.mux.open(channel, ours)

    def exchange(self) -> None:
        readers, writers = self.mux.wants()
        self.mux.exchange({end.fileno() for end in (*readers, *writers)})

    def take_out(self, most: int = MAX_OUT * 2) -> bytes:
        data = bytes(self.mux.out[:most])
        del self.mux.out[:most]
        return data

    def read(self, channel: int, most: int = 1 << 20) -> bytes | None:
        """Return what the stream's socket has, None for nothing yet, b'' at its end."""
        try:
            return self.ends[channel].recv(most)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self.mux.close_all()
        for end in self.ends.values():
            end.close()


@pytest.fixture
def new_side() -> Iterator[Callable[..., Side]]:
    sides: list[Side] = []

    def make(*channels: int) -> Side:
        sides.append(Side(*channels))
        return sides[-1]

    yield make
    for side in sides:
        side.close()


def test_a_line_of_words_is_one_frame_on_channel_0(new_side: Callable[..., Side]) -> None:
    side = new_side()
    side.mux.say(b"exit 1 0 0 0 /tmp 0 0")
    assert side.take_out() == frame(0, b"exit 1 0 0 0 /tmp 0 0")


def test_words_arrive_however_the_pipe_cuts_them(new_side: Callable[..., Side]) -> None:
    side = new_side()
    data = frame(0, b"one") + frame(0) + frame(0, b"three")
    assert [words for at in range(len(data)) for words in side.mux.feed(data[at : at + 1])] == [b"one", b"", b"three"]


def test_what_a_socket_says_is_a_frame_of_its_channel(new_side: Callable[..., Side]) -> None:
    side = new_side(7)
    side.ends[7].send(b"hello")
    side.exchange()
    assert side.take_out() == frame(7, b"hello")


def test_a_frame_reaches_its_socket(new_side: Callable[..., Side]) -> None:
    side = new_side(7, 8)
    assert list(side.mux.feed(frame(7, b"hello"))) == []
    assert side.read(7) == b"hello"
    assert side.read(8) is None


def test_a_channel_may_be_opened_by_the_words_just_before_its_first_bytes(new_side: Callable[..., Side]) -> None:
    side = new_side()
    ours, theirs = socket.socketpair()
    for words in side.mux.feed(frame(0, b"open 3") + frame(3, b"first")):
        assert words == b"open 3"
        side.mux.open(3, ours)
    with theirs:
        theirs.settimeout(FOREVER)
        assert theirs.recv(100) == b"first"


def test_what_comes_for_a_channel_that_is_gone_is_dropped(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    side.mux.close(1)
    assert list(side.mux.feed(frame(1, b"late") + frame(CREDIT | 1, struct.pack(">I", 9)) + frame(1))) == []
    assert side.mux.out == b""
    assert side.mux.streams == {}


def test_a_sockets_end_is_told_after_its_last_bytes(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    side.ends[1].send(b"bye")
    side.ends[1].close()
    side.exchange()
    side.exchange()
    assert side.take_out() == frame(1, b"bye") + frame(1)
    assert side.mux.streams == {}


def test_an_end_that_is_told_closes_the_socket_after_its_last_bytes(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    list(side.mux.feed(frame(1, b"bye") + frame(1)))
    assert side.read(1) == b"bye"
    assert side.read(1) == b""


def test_bytes_a_slow_socket_has_not_taken_outlive_the_end(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    list(side.mux.feed(b"".join(frame(1, bytes(MAX_FRAME)) for _ in range(WINDOW // MAX_FRAME)) + frame(1)))
    found = 0
    while (data := side.read(1)) != b"":
        found += len(data or b"")
        side.exchange()
    assert found == WINDOW
    assert side.mux.streams == {}


def test_a_socket_that_closes_with_bytes_on_their_way_to_it_ends_the_channel(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    for _ in range(WINDOW // MAX_FRAME):
        list(side.mux.feed(frame(1, bytes(MAX_FRAME))))
    side.take_out()
    side.ends[1].close()
    side.exchange()
    assert side.take_out().endswith(frame(1))
    assert side.mux.streams == {}


def test_no_more_is_sent_than_was_granted(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    assert _flood(side) == WINDOW
    assert side.mux.wants()[0] == []
    list(side.mux.feed(frame(CREDIT | 1, struct.pack(">I", 5))))
    assert _flood(side) == 5


def _flood(side: Side) -> int:
    """Push more than a window into stream 1; the number of bytes that went out in frames."""
    out = bytearray()
    for _ in range(3 * WINDOW // MAX_FRAME):
        with contextlib.suppress(BlockingIOError):
            side.ends[1].send(bytes(MAX_FRAME))
        side.exchange()
        out += side.take_out()
    size = at = 0
    while at < len(out):
        length = struct.unpack_from(">II", out, at)[1]
        size, at = size + length, at + 8 + length
    return size


def test_credit_is_granted_as_the_socket_takes_bytes(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    granted = 0
    for _ in range(8):
        list(side.mux.feed(frame(1, bytes(MAX_FRAME))))
        while side.read(1):
            pass
        side.exchange()
    out = side.take_out()
    for at in range(0, len(out), 12):
        channel, length, more = struct.unpack_from(">III", out, at)
        assert (channel, length) == (CREDIT | 1, 4)
        granted += more
    assert granted == 8 * MAX_FRAME


def test_more_credit_than_a_window_is_not_believed(new_side: Callable[..., Side]) -> None:
    side = new_side(1)
    list(side.mux.feed(frame(CREDIT | 1, b"\xff\xff\xff\xff") * 100))
    assert side.mux.streams[1].window.may_send == WINDOW


def test_a_pipe_that_takes_nothing_stops_the_reading_of_streams(new_side: Callable[..., Side]) -> None:
    side = new_side(*range(1, 9))
    for _ in range(2000):
        for end in side.ends.values():
            with contextlib.suppress(BlockingIOError):
                end.send(bytes(65536))
        side.exchange()
    assert MAX_OUT <= len(side.mux.out) <= MAX_OUT + MAX_FRAME + 8
    assert side.mux.wants()[0] == []


def test_what_is_said_after_a_drain_comes_after_all_that_the_sockets_held(new_side: Callable[..., Side]) -> None:
    side = new_side(1, 2)
    side.ends[1].send(bytes(100_000))
    side.ends[1].close()
    side.ends[2].send(b"two")
    side.mux.drain()
    side.mux.say(b"exit")
    out = side.take_out()
    assert out.endswith(frame(1) + frame(2, b"two") + frame(0, b"exit"))
    assert len(out) == 100_000 + 3 + 4 + 5 * 8


VIOLATIONS = {
    "a frame over the limit": frame(1, bytes(MAX_FRAME + 1))[:8],
    "words over the limit": struct.pack(">II", 0, 0xFFFFFFFF),
    "a grant that is no number": frame(CREDIT | 1, b"12345"),
    "an empty grant": frame(CREDIT | 1),
    "more than the window": frame(1, bytes(MAX_FRAME)) * (3 * WINDOW // MAX_FRAME),
}


@pytest.mark.parametrize("data", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_an_error_before_anything_is_held(new_side: Callable[..., Side], data: bytes) -> None:
    side = new_side(1)
    with pytest.raises(FrameError):
        list(side.mux.feed(data))
    assert len(side.mux.streams[1].pending) <= WINDOW


def test_a_stream_that_nobody_reads_holds_up_no_other(new_side: Callable[..., Side]) -> None:
    one, two = new_side(1, 2), new_side(1, 2)
    sent = received = 0
    for _ in range(3000):
        for channel in (1, 2):
            with contextlib.suppress(BlockingIOError):
                size = one.ends[channel].send(bytes(4096))
                sent += size if channel == 2 else 0
        _carry(one, two)
        received += len(two.read(2) or b"")  # and never channel 1
    assert received == sent
    assert sent > 4 * WINDOW
    assert len(two.mux.streams[1].pending) <= WINDOW


def _carry(one: Side, two: Side, chunk: int = MAX_OUT * 2) -> None:
    """Exchange once at both ends, and carry `chunk` bytes over the pipe each way."""
    for side, other in ((one, two), (two, one)):
        side.exchange()
        for _ in other.mux.feed(side.take_out(chunk)):
            pass
        other.exchange()


@settings(max_examples=60)
@given(
    payloads=st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 200_000)), max_size=12),
    chunks=st.lists(st.integers(1, 100_000), min_size=1, max_size=20),
)
def test_bytes_arrive_unchanged_in_whatever_pieces_and_buffers_stay_bounded(
    payloads: list[tuple[int, int]], chunks: list[int]
) -> None:
    one, two = Side(1, 2), Side(1, 2)
    try:
        waiting = {1: bytearray(), 2: bytearray()}
        for number, (channel, size) in enumerate(payloads):
            waiting[channel] += bytes([number]) * size
        expected = {channel: bytes(data) for channel, data in waiting.items()}
        found = {1: bytearray(), 2: bytearray()}
        rounds = 0
        while any(len(found[channel]) < len(expected[channel]) for channel in found):
            rounds += 1
            assert rounds < 100_000, "it stands still"
            for channel, data in waiting.items():
                if data:
                    with contextlib.suppress(BlockingIOError):
                        del data[: one.ends[channel].send(data)]
            _carry(one, two, chunks[rounds % len(chunks)] + rounds)
            for channel in found:
                found[channel] += two.read(channel, 30_000) or b""
                assert len(two.mux.streams[channel].pending) <= WINDOW
                assert 0 <= one.mux.streams[channel].window.may_send <= WINDOW
        assert {channel: bytes(data) for channel, data in found.items()} == expected
    finally:
        one.close()
        two.close()


def test_what_a_socket_said_before_it_closed_with_input_unread_still_comes(new_side: Callable[..., Side]) -> None:
    side = new_side(5)
    for _ in range(64):  # more than the socket takes
        assert not list(side.mux.feed(frame(5, b"i" * 16_384)))
    side.ends[5].sendall(b"last words")
    side.ends[5].close()
    for _ in range(3):
        side.exchange()
    assert side.take_out() == frame(5, b"last words") + frame(5)
    assert not side.mux.streams
