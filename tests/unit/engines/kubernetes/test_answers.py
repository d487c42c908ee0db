"""The API server's JSON, bounded and in whatever pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.engines.kubernetes.answers import MAX_LINE, Lines, parsed
from agent_tools.errors import EngineError

EVENTS = [{"type": "ADDED", "object": {"name": f"é{number}"}} for number in range(5)]
STREAM = b"".join(json.dumps(each).encode() + b"\n" for each in EVENTS)


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_pieces_make_the_same_lines(cuts: list[int]) -> None:
    marks = sorted({0, *cuts, len(STREAM)})
    lines = Lines(STREAM[start:end] for start, end in itertools.pairwise(marks))
    found = []
    while (event := lines.next()) is not None:
        found.append(event)
    assert found == EVENTS


@pytest.mark.parametrize("pieces", [[b"x" * (MAX_LINE + 1)], [b"x" * 1024] * (MAX_LINE // 1024 + 1)])
def test_a_line_without_end_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(EngineError, match="more than"):
        Lines(iter(pieces)).next()


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(EngineError, match=r"not JSON|not a JSON"):
        parsed(content)
