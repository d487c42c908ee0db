"""Commands as values."""

from __future__ import annotations

from agent_tools.results.commands import CommandResult


def test_what_was_left_out_is_told_in_the_text() -> None:
    stdout, stderr = CommandResult(0, b"out", b"err", omitted_stdout=1234).texts
    assert stdout == "[1,234 bytes before this are left out]\nout"
    assert stderr == "err"


def test_the_streams_as_text_have_a_mark_for_what_is_no_utf8() -> None:
    assert CommandResult(0, b"out\xff", b"err").texts == ("out�", "err")
