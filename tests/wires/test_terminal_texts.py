"""Texts that models read and change through the terminal wire: their line ends and line numbers."""

from __future__ import annotations

import json
import subprocess
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from agent_tools.limits import MIB
from agent_tools.results.commands import CommandOutput, Cursor
from agent_tools.wires import terminal
from agent_tools.wires.open_resources import OpenResource, program
from agent_tools.wires.terminal.commands import command_shown, last_lines
from agent_tools.wires.terminal.files import Replacement, as_read, lines_of, replaced_all

SEARCH = Path(terminal.__file__).parent / "guest" / "search.py"


def replaced(text: str, target: str, replacement: str, **options: object) -> str:
    return replaced_all(text, [Replacement(target=target, replacement=replacement, **options)])


@given(st.text("a\n", max_size=9), st.integers(1, 10))
def test_the_last_lines_of_a_text_are_whole(text: str, number: int) -> None:
    assert last_lines(text, number) == "".join(text.splitlines(keepends=True)[-number:])


def test_the_output_of_a_command_is_not_cut_into_lines_unless_some_are_left_out() -> None:
    process = Mock()
    process.is_over, process.poll.return_value = False, None
    process.sync.read.return_value = CommandOutput(b"\n" * MIB, b"", Cursor(MIB, 0), 0)
    run = OpenResource(("me",), "cntr_1", process, lambda: None, label="yes ''")
    for tail in (None, 2):
        tracemalloc.start()
        try:
            shown = command_shown(run, 0, tail)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (len(shown["output"][0]["data"]), shown["truncated"]) == (tail or MIB, bool(tail))
        assert peak < 4 * MIB


CRLF = "line one\r\nline two\r\nline three\r\n"
CHANGED = {
    "CRLF, two lines": (CRLF, "line one\nline two", "1\n2", "1\r\n2\r\nline three\r\n"),
    "CRLF, one line by two": (CRLF, "line two", "2\n2b", "line one\r\n2\r\n2b\r\nline three\r\n"),
    "CRLF, the line end, too": (CRLF, "line two\n", "", "line one\r\nline three\r\n"),
    "CRLF, target with CRLF": (CRLF, "line one\r\nline two", "1", "1\r\nline three\r\n"),
    "CR": ("a\rb\rc\r", "a\nb", "1\n2", "1\r2\rc\r"),
    "mixed": ("a\nb\r\nc\rd", "b\nc", "B\nC", "a\nB\r\nC\rd"),
    "mixed, the LF line": ("a\nb\r\nc", "a", "1\n2", "1\n2\nb\r\nc"),
    "LF": ("a\nb\n", "a\nb", "1\r\n2", "1\r\n2\n"),
    "no line end": ("ab", "a", "1\n2", "1\n2b"),
}


@pytest.mark.parametrize(("text", "target", "replacement", "expected"), CHANGED.values(), ids=CHANGED)
def test_a_target_is_what_was_read_and_other_lines_keep_their_ends(
    text: str, target: str, replacement: str, expected: str
) -> None:
    assert replaced(text, target, replacement) == expected


ENDS = st.sampled_from(["\n", "\r\n"])
TEXTS = st.lists(st.tuples(st.text("ab", max_size=3), ENDS), max_size=12).map(lambda rows: "".join(map("".join, rows)))


@given(TEXTS, st.text("ab\n", min_size=1, max_size=4), st.text("cd\n", max_size=4))
def test_replacing_is_as_in_the_text_that_was_read(text: str, target: str, replacement: str) -> None:
    shown = as_read(text)
    if target not in shown:
        with pytest.raises(HTTPException):
            replaced(text, target, replacement, allow_multiple=True)
        return
    result = replaced(text, target, replacement, allow_multiple=True)
    assert as_read(result) == shown.replace(target, replacement)
    first = shown.index(target)
    kept = next(at for at in range(len(text) + 1) if len(as_read(text[:at])) >= first)
    assert result.startswith(text[: kept - 1] if kept else "")


ODD = "a\u2028b\nx\x0cy\x0b\x85\ntarget\nlast\n"


def test_lines_are_numbered_as_grep_numbers_them() -> None:
    assert lines_of(ODD.encode(), 3, 3) == {"content": "target\n", "total_lines": 4}
    assert lines_of(b"a\r\nb\r\n", 2, 2) == {"content": "b\n", "total_lines": 2}
    assert replaced(ODD, "target", "T", start_line=3, end_line=3) == ODD.replace("target", "T")


def test_a_search_numbers_lines_as_grep_does(tmp_path: Path) -> None:
    (tmp_path / "u.txt").write_bytes(ODD.encode())
    (tmp_path / "w.txt").write_bytes(b"a\r\nb\rc\r\ntarget\r\n")
    given = {
        "do": "grep",
        "path": str(tmp_path),
        "shown": "/w",
        "query": "target",
        "regex": False,
        "case_insensitive": False,
    }
    given |= {"include": ["u.*", "w.*", "x" * 200_000], "match_per_line": True, "max_results": 10}
    asked = program(SEARCH, given)  # more than one argument of a command can hold
    done = subprocess.run(asked["command"], input=asked["stdin"], capture_output=True, check=True)
    numbers = {(Path(each["file"]).name, each["line"], each["content"]) for each in json.loads(done.stdout)["matches"]}
    assert numbers == {("u.txt", 3, "target"), ("w.txt", 3, "target")}
