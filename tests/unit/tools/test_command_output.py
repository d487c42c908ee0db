"""The output of a command: given as it comes, cut in its middle, safe to show."""

from __future__ import annotations

import pytest

from agent_tools.tools.output_text import OutputText


def test_the_first_half_is_given_as_it_comes_and_the_last_at_the_end() -> None:
    output = OutputText(10)
    assert [output.add("stdout", b"abc"), output.add("stdout", b"defg"), output.add("stdout", b"hijklmno")] == [
        *("abc", "de", "")
    ]
    assert output.finish("stdout") == "\n[... 5 characters left out ...]\nklmno"
    assert output.text("stdout") == "abcde\n[... 5 characters left out ...]\nklmno"


def test_what_fits_is_not_cut_wherever_the_halves_meet() -> None:
    output = OutputText(10)
    given = output.add("stdout", b"abcdefghij") + output.finish("stdout")
    assert given == "abcdefghij"


def test_both_streams_share_the_limit_and_each_has_its_own_note() -> None:
    output = OutputText(6)
    assert (output.add("stderr", b"ab"), output.add("stdout", b"cdefgh"), output.add("stderr", b"ij")) == (
        "ab",
        "c",
        "",
    )
    assert output.finish("stdout") == "\n[... 4 characters left out ...]\nh"
    assert output.finish("stderr") == "ij"


@pytest.mark.parametrize("limit", [0, 1])
def test_hardly_any_room(limit: int) -> None:
    output = OutputText(limit)
    assert output.add("stdout", b"abc") == "a" * limit
    assert output.finish("stdout") == f"\n[... {3 - limit} characters left out ...]\n"


def test_characters_and_escapes_cut_in_two_are_whole_again() -> None:
    output = OutputText(100)
    given = [output.add("stdout", bytes([byte])) for byte in "\x1b[31mé\U0001f600\x1b]0;title\x07.".encode()]
    assert "".join(given) == "é\U0001f600."


def test_halves_without_the_rest_are_shown_as_what_they_are() -> None:
    output = OutputText(100)
    assert output.add("stdout", b"a\xf0\x9f") == "a"
    assert output.add("stderr", b"b\x1b[3") == "b"
    assert output.finish("stdout") == "\ufffd"
    assert "\x1b" not in output.finish("stderr", "the reason\n")
    assert output.text("stderr").endswith("the reason\n")
