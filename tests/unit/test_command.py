"""Commands as values."""

from __future__ import annotations

from agent_tools.command import CommandResult


def test_the_streams_as_text_have_a_mark_for_what_is_no_utf8() -> None:
    assert CommandResult(0, b"out\xff", b"err").texts == ("out�", "err")
