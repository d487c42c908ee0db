"""The frame of all formats: what is refused by its header, what when it is whole, and what a refusal costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire.framing import (
    HEADER,
    MAX_LENGTH,
    FrameError,
    FrameReader,
    TooLarge,
    pack,
    pack_parts,
    read_frame,
    split,
)
from agent_tools.limits import MIB

LIMITS = {1: 100, 2: 0, 2**32 - 1: 16 * MIB}
Frame = tuple[int, bytes]


def frames(
    value_of: Callable[[int, bytes], Frame | None] = lambda kind, payload: (kind, payload),
) -> FrameReader[Frame]:
    return FrameReader(LIMITS.get, value_of)


FRAMES = st.lists(st.tuples(st.just(1), st.binary(max_size=100)) | st.just((2, b"")), max_size=6)


@given(FRAMES, st.integers(1, 40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent: list[Frame], piece: int) -> None:
    stream, reader, found = b"".join(pack(*each) for each in sent), frames(), list[Frame]()
    for start in range(0, len(stream), piece):
        found += reader.feed(stream[start : start + piece])
    assert found == sent


REFUSED = {
    "an unknown kind": (HEADER.pack(3, 0), "bytes that are no message"),
    "an unknown kind that is too long": (HEADER.pack(0, MAX_LENGTH), "bytes that are no message"),
    "one byte more": (HEADER.pack(1, 101), "a message of 101 bytes, over 100 bytes"),
    "a payload where there is none": (HEADER.pack(2, 1), "a message of 1 bytes, over 0 bytes"),
    "4 GiB": (HEADER.pack(2**32 - 1, MAX_LENGTH), "a message of 4,294,967,295 bytes, over 16,777,216 bytes"),
}


@pytest.mark.parametrize(("header", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_frame_is_refused_by_its_header_by_either_reader(header: bytes, reason: str) -> None:
    reads = iter([header])
    with pytest.raises(FrameError) as caught:
        read_frame(lambda size: next(reads), LIMITS.get)  # it asks for no payload
    assert str(caught.value) == reason
    reader = frames()
    assert list(reader.feed(header[:-1])) == []
    for _ in range(2):
        with pytest.raises(FrameError) as caught:
            list(reader.feed(header[-1:]))
        assert str(caught.value) == reason


def test_frames_before_a_refused_one_are_had() -> None:
    feed = frames().feed(pack(1, b"a") + pack(3, b""))
    assert next(feed) == (1, b"a")
    with pytest.raises(FrameError):
        next(feed)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError])
def test_a_payload_of_which_no_value_can_be_made_is_malformed(error: type[Exception]) -> None:
    def fail(kind: int, payload: bytes) -> None:
        raise error("\x1b[2J")

    with pytest.raises(FrameError) as caught:
        list(frames(fail).feed(pack(1, b"x")))
    assert str(caught.value) == f"a malformed message ({error.__name__})"


def test_a_frame_without_a_value_is_skipped() -> None:
    reader = frames(lambda kind, payload: (kind, payload) if kind == 1 else None)
    assert list(reader.feed(pack(2, b"") + pack(1, b"a") + pack(2, b""))) == [(1, b"a")]


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_parts_come_out_as_they_went_in(parts: list[bytes]) -> None:
    ((_, payload),) = FrameReader(lambda _: MIB, lambda kind, payload: (kind, payload)).feed(pack_parts(7, parts))
    assert split(payload, 0, 20) == parts


@given(st.binary(max_size=60))
def test_any_payload_is_its_parts_or_malformed(payload: bytes) -> None:
    reader = FrameReader(LIMITS.get, lambda _, payload: split(payload, 0, 10))
    try:
        (parts,) = reader.feed(pack(1, payload))
    except FrameError:
        return
    assert pack_parts(1, parts) == pack(1, payload)


@pytest.mark.parametrize("count", [1, 4])
def test_another_number_of_parts_is_refused(count: int) -> None:
    with pytest.raises(FrameError, match=f"^a message of {count} parts$"):
        split(pack_parts(1, [b""] * count)[HEADER.size :], 2, 3)


@pytest.mark.parametrize("most", [10, 2**32])
def test_a_number_of_parts_that_lies_costs_nothing(most: int) -> None:
    frame = pack(1, MAX_LENGTH.to_bytes(4, "big") + bytes(1000))
    tracemalloc.start()
    with pytest.raises(FrameError):
        list(FrameReader(lambda _: MIB, lambda _, payload: split(payload, 0, most)).feed(frame))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB // 4


def test_parts_over_a_limit_are_refused_by_who_sends_them() -> None:
    assert pack_parts(1, [bytes(90)], 98)
    with pytest.raises(TooLarge, match="99 bytes are more than 98"):
        pack_parts(1, [bytes(91)], 98)
