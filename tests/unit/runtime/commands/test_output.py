"""The kept end of a stream, and the count of what came before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_tools.runtime.commands import tail as output
from agent_tools.runtime.commands.tail import SLACK, Tail


@given(st.lists(st.binary(max_size=40)), st.integers(1, 60), st.integers(0, 400))
def test_what_is_kept_is_the_end_and_the_rest_is_counted(pieces: list[bytes], most: int, place: int) -> None:
    tail, whole = Tail(most), b"".join(pieces)
    for piece in pieces:
        tail.add(piece)
    place = min(place, len(whole))
    kept, omitted = tail.since(place)
    assert tail.total == len(whole)
    assert tail.omitted == max(0, len(whole) - most)
    assert kept == whole[max(place, tail.omitted) :]
    assert omitted == max(0, tail.omitted - place)


def test_no_more_is_held_than_the_bound_and_some_slack() -> None:
    tail = Tail(1_000)
    for _ in range(100):
        tail.add(bytes(SLACK // 3))
    assert len(tail._kept) <= 1_000 + SLACK + SLACK // 3
    assert tail.since(tail.omitted)[0] == bytes(1_000)
    assert output.SLACK == SLACK
