"""The frames that a kernel's messages travel in: bytes in, messages out, with no socket."""

from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tools.guest.wire.framing import FrameError, pack_parts
from agent_tools.guest.wire.messages import (
    CONTROL,
    IOPUB,
    MAX_PARTS,
    MIN_PARTS,
    SHELL,
    STDIN,
    MessageReader,
)
from agent_tools.limits import MIB
from tests.fake_kernel import message, sizes

LIMIT = 16 * MIB
LARGEST = 2**32 - 1  # that a size can say
Found = tuple[int, list[bytes]]


def read(data: bytes, limit: int = LIMIT) -> list[Found]:
    return list(MessageReader(limit).feed(data))


def refusal(data: bytes) -> str:
    """Return why these bytes are refused."""
    with pytest.raises(FrameError) as caught:
        read(data)
    return str(caught.value)


def four(*last: bytes) -> list[bytes]:
    """As many parts as a message has at least, and these after them."""
    return [b"", b"", b"", b"", *last]


# -- both ways --------------------------------------------------------------------------------------------------------

MESSAGES = [
    pytest.param(four(), id="nothing"),
    pytest.param([b"{}"] * 4, id="four parts"),
    pytest.param(four(b""), id="an empty buffer"),
    pytest.param(four(b"x" * 255, b"", b"y" * 256, b"\xff" * 1000), id="mixed"),
    pytest.param([b"", b"", b"", b"x" * MIB], id="1 MiB"),
    pytest.param([b"x" * MIB, b"y", b"z" * MIB, b""], id="two of 1 MiB"),
    pytest.param([b"", b"", b"", b"x" * (LIMIT - 20)], id="as large as may be"),
    pytest.param([b"x"] * MAX_PARTS, id="as many parts as may be"),
]


@pytest.mark.parametrize("channel", [SHELL, IOPUB, CONTROL, STDIN])
@pytest.mark.parametrize("parts", MESSAGES)
def test_what_is_packed_is_as_documented_and_read_again(channel: int, parts: list[bytes]) -> None:
    packed = pack_parts(channel, parts)
    payload = struct.pack(f">{1 + len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)
    assert packed == struct.pack(">II", channel, len(payload)) + payload
    assert read(packed + pack_parts(SHELL, four(b"next"))) == [(channel, parts), (SHELL, four(b"next"))]


def test_many_small_messages_come_in_order() -> None:
    messages = [(IOPUB, four(b"%d" % number)) for number in range(20_000)]
    assert read(b"".join(pack_parts(*each) for each in messages)) == messages


def test_channels_do_not_disturb_each_other() -> None:
    messages = [(channel, four(b"%d" % number)) for number in range(10) for channel in (STDIN, SHELL, IOPUB, CONTROL)]
    assert read(b"".join(pack_parts(*each) for each in messages)) == messages


# -- what is refused --------------------------------------------------------------------------------------------------


def test_an_unknown_channel_is_refused_at_once() -> None:
    for channel in (0, *range(5, 256), 2**24 + IOPUB, LARGEST):
        for length in (0, 4, LARGEST):
            assert refusal(struct.pack(">II", channel, length)) == "bytes that are no message", channel


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", id="HTTP"),
        pytest.param(bytes(64), id="NULs"),
        pytest.param(b"\xff" * 64, id="ones"),
        pytest.param(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL", id="ZeroMQ's greeting"),
        pytest.param(b'{"a": 1}', id="JSON"),
    ],
)
def test_noise_is_refused(noise: bytes) -> None:
    assert refusal(noise) == "bytes that are no message"


def test_too_few_and_too_many_parts_are_refused() -> None:
    for count in (*range(MIN_PARTS), *range(MAX_PARTS + 1, 256), LARGEST):
        for channel in (SHELL, IOPUB, CONTROL, STDIN):
            assert refusal(struct.pack(">III", channel, 4, count)) == f"a message of {count} parts"


@pytest.mark.parametrize("channel", [SHELL, IOPUB, CONTROL, STDIN])
@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, LARGEST])
def test_a_part_over_the_limit_is_refused_by_its_size(channel: int, place: int, size: int) -> None:
    found = [0] * 6
    found[place] = size
    length = min(size + 28, LARGEST)
    assert refusal(sizes(channel, *found)) == f"a message of {length:,} bytes, over 16,777,216 bytes"


def test_parts_that_are_together_over_the_limit_are_refused_by_their_sizes() -> None:
    reader = MessageReader(1028)
    messages = reader.feed(pack_parts(IOPUB, four(b"x" * 600, b"y" * 400)) + sizes(IOPUB, 0, 0, 0, 0, 600, 401))
    assert next(messages) == (IOPUB, four(b"x" * 600, b"y" * 400))
    with pytest.raises(FrameError, match="a message of 1,029 bytes, over 1,028 bytes"):
        next(messages)


def test_sizes_of_256_gib_are_no_more_than_a_number() -> None:
    lie = struct.pack(">66I", IOPUB, 260, 64, *[LARGEST] * 63) + bytes(4)
    assert refusal(lie) == "a message whose parts are not as it says"


@pytest.mark.parametrize("payload", [b"", b"\0", struct.pack(">I", 4), struct.pack(">4I", 4, 0, 0, 0)])
def test_a_message_too_short_for_its_sizes_is_refused(payload: bytes) -> None:
    assert refusal(struct.pack(">II", IOPUB, len(payload)) + payload) in (
        "a message of 0 parts",
        "a malformed message (error)",
    )


@pytest.mark.parametrize("more", [-1, 1])
def test_a_length_that_is_not_that_of_the_parts_is_refused(more: int) -> None:
    lie = bytearray(pack_parts(IOPUB, four(b"abc")) + b"x")
    lie[7] += more
    assert refusal(bytes(lie)) == "a message whose parts are not as it says"


def test_limits_are_of_one_message_and_not_of_all() -> None:
    messages = [(SHELL, [b"x" * 10] * MAX_PARTS), (IOPUB, four(b"y" * 1000))] * 20
    assert read(b"".join(pack_parts(*each) for each in messages), limit=1028) == messages


def test_a_refusal_is_for_good() -> None:
    reader = MessageReader(LIMIT)
    for _ in range(3):
        with pytest.raises(FrameError):
            list(reader.feed(b"\xff" * 8))
    with pytest.raises(FrameError):
        list(reader.feed(pack_parts(IOPUB, four())))


# -- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [four(), [b"a", b"", b"bc", b""], four(b"x" * 300, b"yz")])
def test_a_message_that_is_not_whole_is_never_delivered(parts: list[bytes]) -> None:
    whole = pack_parts(SHELL, four(b"whole"))
    for cut in range(len(pack_parts(IOPUB, parts))):
        reader = MessageReader(LIMIT)
        assert list(reader.feed(whole + pack_parts(IOPUB, parts)[:cut])) == [(SHELL, four(b"whole"))]
        assert list(reader.feed(pack_parts(IOPUB, parts)[cut:])) == [(IOPUB, parts)]


def test_no_bytes_are_no_message() -> None:
    reader = MessageReader(LIMIT)
    assert list(reader.feed(b"")) == []
    assert list(reader.feed(pack_parts(IOPUB, four())[:5])) == []
    assert list(reader.feed(b"")) == []


def test_a_length_that_lies_takes_the_next_message_for_its_part() -> None:
    lie = sizes(IOPUB, 0, 0, 0, 100)
    assert read(lie + pack_parts(SHELL, four(b"x" * 30))) == []
    following = pack_parts(SHELL, four(b"x" * (100 - len(pack_parts(SHELL, four(b""))))))
    assert read(lie + following + pack_parts(IOPUB, four())) == [(IOPUB, [b"", b"", b"", following]), (IOPUB, four())]


def test_messages_left_by_a_reader_that_stopped_come_with_the_next_bytes() -> None:
    reader = MessageReader(LIMIT)
    messages = reader.feed(b"".join(pack_parts(SHELL, four(b"%d" % number)) for number in range(3)))
    assert next(messages) == (SHELL, four(b"0"))
    messages.close()  # type: ignore[attr-defined]
    assert list(reader.feed(b"")) == [(SHELL, four(b"1")), (SHELL, four(b"2"))]


PARTS = st.lists(st.binary(max_size=20) | st.integers(250, 600).map(bytes), min_size=4, max_size=8)
ANY_MESSAGES = st.lists(st.tuples(st.integers(SHELL, STDIN), PARTS), max_size=8)


@given(ANY_MESSAGES, st.lists(st.integers(1, 700), max_size=30))
@example([(IOPUB, [b"ab", b"", bytes(300), b""]), (SHELL, [b""] * 4)], [1] * 400)
def test_pieces_of_any_size_make_the_same_messages(messages: list[Found], lengths: list[int]) -> None:
    data, found, reader = b"".join(message(*each) for each in messages), list[Found](), MessageReader(LIMIT)
    for length in [*lengths, len(data)]:
        found += reader.feed(data[:length])
        data = data[length:]
    assert found == messages


@given(st.binary(max_size=2000))
def test_arbitrary_bytes_are_whole_messages_or_refused(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        for channel, parts in MessageReader(LIMIT).feed(data):
            assert SHELL <= channel <= STDIN
            assert MIN_PARTS <= len(parts) <= MAX_PARTS


SIZE = st.integers(0, 300) | st.sampled_from([2**16, 2**24 + 1, LARGEST])
HEAD = st.builds(lambda channel, found: sizes(channel, *found), st.integers(0, 6), st.lists(SIZE, max_size=8))
PIECE = st.binary(max_size=60) | HEAD | st.builds(message, st.integers(1, 4), PARTS)


@given(st.lists(PIECE, max_size=12), st.integers(0, 2000))
def test_any_pieces_are_messages_within_the_limits_or_refused(pieces: list[bytes], limit: int) -> None:
    reader = MessageReader(limit)
    with contextlib.suppress(FrameError):
        for piece in pieces:
            for _, parts in reader.feed(piece):
                assert MIN_PARTS <= len(parts) <= MAX_PARTS
                assert len(pack_parts(IOPUB, parts)) <= 8 + limit


@given(ANY_MESSAGES, st.binary(max_size=9))
def test_noise_after_messages_takes_none_of_them_back(messages: list[Found], noise: bytes) -> None:
    found: list[Found] = []
    with contextlib.suppress(FrameError):
        found.extend(MessageReader(LIMIT).feed(b"".join(message(*each) for each in messages) + noise))
    assert found[: len(messages)] == messages


# -- cost -------------------------------------------------------------------------------------------------------------


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


@pytest.mark.parametrize("pieces", [1, 10, 100], ids=lambda count: f"{count} pieces")
def test_a_message_takes_no_more_memory_than_twice_its_size(pieces: int) -> None:
    data = message(IOPUB, [b"{}", b"{}", b"{}", bytes(8 * MIB)])
    step = len(data) // pieces + 1
    tracemalloc.start()
    reader, found = MessageReader(LIMIT), list[Found]()
    for at in range(0, len(data), step):
        found += reader.feed(data[at : at + step])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 1
    assert peak < 3 * len(data)


def test_sizes_alone_hold_no_memory() -> None:
    readers = [MessageReader(LIMIT) for _ in range(100)]
    tracemalloc.start()
    for reader in readers:
        assert list(reader.feed(sizes(IOPUB, 0, 0, 0, LIMIT - 20))) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


def test_what_was_delivered_is_not_kept() -> None:
    reader, data = MessageReader(LIMIT), message(CONTROL, four(bytes(MIB)))
    tracemalloc.start()
    for _ in range(50):
        for _ in reader.feed(data):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * MIB


@pytest.mark.cost
def test_a_message_that_comes_byte_by_byte_costs_time_by_its_size() -> None:
    def seconds(size: int) -> float:
        reader, data = MessageReader(LIMIT), message(IOPUB, four(bytes(size)))
        started = time.process_time()
        assert sum(len(list(reader.feed(byte))) for byte in byte_by_byte(data)) == 1
        return time.process_time() - started

    seconds(1000)
    small, large = min(seconds(10_000) for _ in range(3)), min(seconds(160_000) for _ in range(3))
    assert large < 16 * 4 * small
