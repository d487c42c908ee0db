"""The heads of frames, found wherever their bytes are split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent_tools.bodies.frames import BURST, FrameBudget


def frame(opcode: int, size: int, is_final: bool = True) -> bytes:
    head = bytes([opcode | (0x80 if is_final else 0)])
    if size < 126:
        return head + bytes([0x80 | size]) + bytes(4 + size)
    kind, length = (126, 2) if size < 2**16 else (127, 8)
    return head + bytes([0x80 | kind]) + size.to_bytes(length, "big") + bytes(4 + size)


FRAMES = st.tuples(st.sampled_from([0, 1, 2, 8, 9, 10]), st.sampled_from([0, 1, 125, 126, 300, 70_000]), st.booleans())


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 100_000), max_size=20))
def test_frames_are_counted_wherever_they_are_split(frames: list[tuple[int, int, bool]], cuts: list[int]) -> None:
    data = b"".join(frame(*each) for each in frames)
    budget = FrameBudget(0)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(places):
        assert budget.spend(data[start:end], 0)
    pieces = [is_final for opcode, _, is_final in frames if opcode < 8]
    assert budget.is_between == (not pieces or pieces[-1])
    assert budget.spend(frame(9, 0) * (BURST - len(frames)), 0)
    assert not budget.spend(frame(9, 0) * (len(frames) + len(data) // 1024 + 8), 0)


def test_a_frame_that_has_begun_is_a_message_that_is_coming() -> None:
    whole = frame(1, 10)
    for end in range(1, len(whole)):
        budget = FrameBudget(0)
        budget.spend(whole[:end], 0)
        assert not budget.is_between
        budget.spend(whole[end:], 0)
        assert budget.is_between


def test_time_and_bytes_buy_frames() -> None:
    budget = FrameBudget(0)
    assert budget.spend(frame(9, 0) * BURST, 0)
    assert budget.spend(frame(9, 0) * 50, 1)
    assert budget.spend(frame(2, 100 * 1024) * 50, 1)
    assert not budget.spend(frame(9, 0) * BURST * 6, 1)
