"""Archives on the host: whether there are variables in one, and what an untrusted guest says became of them."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from agent_tools.limits import Limits
from agent_tools.results.variables import MissingVariable, VariablesReport
from agent_tools.runtime.files.archives import MAX_REASON, UNREADABLE, opened, read_report, warn_of_left_out


def tar(*names: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return file.getvalue()


@pytest.mark.parametrize(
    ("archive", "has_variables"),
    [
        (tar(".agent_tools.variables", "a"), True),
        (tar(".", ".agent_tools.variables"), False),
        (tar(".agent_tools.variables.000000"), False),
        (b"", False),
        (b"\0" * 10_240, False),
        (b".agent_tools.variables", True),
    ],
)
def test_the_first_name_tells_of_variables(archive: bytes, has_variables: bool) -> None:
    for given in (archive, io.BytesIO(archive)):
        found, pieces = opened(given)
        assert found == has_variables
        assert b"".join(pieces) == archive


def test_a_report_is_read() -> None:
    head = {"report": {"kept": ["a", "ü"], "missing": [["lock", "TypeError: no"]]}}
    assert read_report(head, Limits()) == VariablesReport(("a", "ü"), (MissingVariable("lock", "TypeError: no"),))


@pytest.mark.parametrize("head", [{}, {"report": None}])
def test_no_report_is_a_problem_that_is_told(head: dict[str, Any]) -> None:
    assert read_report(head, Limits()) == VariablesReport(problem=UNREADABLE)


@pytest.mark.parametrize(
    "report",
    [
        *([], "a", 1, {}, {"kept": []}, {"kept": {}, "missing": []}, {"kept": [1], "missing": []}),
        *({"kept": [], "missing": [["a"]]}, {"kept": [], "missing": ["ab"]}, {"kept": [], "missing": [["a", None]]}),
        {"kept": ["a"] * 21, "missing": []},
    ],
)
def test_what_is_no_report_is_refused(report: object) -> None:
    with pytest.raises(ValueError, match="report"):
        read_report({"report": report}, Limits(max_variables=10))


def test_files_that_were_left_out_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_left_out({"left_out": [["a\x1b[2J", "Permission denied"], ["b", "c\n"]]})
    warn_of_left_out({})
    (record,) = caplog.records
    assert "a (Permission denied), b (c" in record.getMessage()
    assert record.getMessage().isprintable()


@pytest.mark.parametrize("left_out", [{}, ["a"], [["a"]], [["a", 1]], [["a", "b"]] * 21])
def test_what_is_no_list_of_files_is_refused(left_out: object) -> None:
    with pytest.raises(ValueError, match="malformed"):
        warn_of_left_out({"left_out": left_out})


@pytest.mark.parametrize("more", [-1, 1.0, True, "1", None])
def test_what_is_no_number_of_files_is_refused(more: object) -> None:
    with pytest.raises(ValueError, match="malformed"):
        warn_of_left_out({"left_out": [["a", "b"]], "more": more})


def test_names_and_reasons_are_cut_and_cannot_move_a_cursor() -> None:
    report = read_report({"report": {"kept": ["\x1b[2Jx\n\u202e"], "missing": [["y", "z" * 10_000]]}}, Limits())
    assert report.kept[0].isprintable()
    assert len(report.missing[0].reason) == MAX_REASON
