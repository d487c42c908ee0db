"""The sorting of failures over the corpus, and the cutting of notebooks into cells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from corpus_cells import Cell, cells_of, repositories
from corpus_reasons import Names, Outcome, sort_all, sort_run


def outcome(kind: str = "ran", code: str = "x = 1", cell: int = 0, **more: str) -> Outcome:
    return Outcome("a/b", "n.ipynb", cell, code, kind, **more)


def failed(name: str, message: str, code: str = "f()", cell: int = 0) -> Outcome:
    return outcome("failed", code, cell, name=name, message=message)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (outcome(), "ran"),
        (outcome("slow"), "too slow"),
        (outcome("died", message="memory limit of 2 GiB"), "too large"),
        (outcome("died", message="signal 11"), "ours"),
        (outcome("refused", name="ToolServiceError", message="no engine"), "ours"),
        (failed("OSError", "[Errno 30] Read-only file system: '/opt/x'"), "ours"),
        (failed("PermissionError", "[Errno 13] Permission denied: 'a'"), "ours"),
        (failed("ModuleNotFoundError", "No module named 'numpy._core.tests'"), "ours"),
        (failed("ModuleNotFoundError", "No module named 'skimage'"), "missing package"),
        (failed("ModuleNotFoundError", "No module named 'sklearn.externals.six'"), "drift"),
        (failed("ImportError", "Missing optional dependency 'lxml'."), "missing package"),
        (failed("URLError", "<urlopen error [Errno -3] Temporary failure in name resolution>"), "network"),
        (failed("FileNotFoundError", "[Errno 2] No such file or directory: 'a.csv'"), "missing data"),
        (failed("AttributeError", "'DataFrame' object has no attribute 'append'"), "drift"),
        (failed("ValueError", "Invalid frequency: H. Did you mean h?"), "drift"),
        (failed("SyntaxError", "Missing parentheses in call to 'print'."), "drift"),
        (failed("KeyError", "-1"), "own"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.message[:30],
)
def test_a_failure_is_sorted_by_its_words(of: Outcome, reason: str) -> None:
    assert sort_run([of]) == [reason]


def test_what_needs_a_failed_cell_fails_after_it_until_the_name_is_made_anew() -> None:
    run = [
        failed("URLError", "urlopen error", "df = read()", 0),
        failed("NameError", "name 'df' is not defined", "top = df.head()", 1),
        failed("NameError", "name 'top' is not defined", "top.plot()", 2),
        outcome(code="df = 1", cell=3),
        failed("KeyError", "'a'", "df['a']", 4),
    ]
    assert sort_run(run) == ["network", "after a failed cell", "after a failed cell", "ran", "own"]


def test_variables_are_gone_with_a_kernel() -> None:
    run = [outcome(), outcome("slow", "f()", 1), failed("NameError", "name 'x' is not defined", "x + 1", 2)]
    assert sort_run(run) == ["ran", "too slow", "after a failed cell"]


def test_a_cell_that_runs_with_other_pins_is_no_fault_of_its_own() -> None:
    assert sort_all([[failed("KeyError", "'a'")], [outcome()]]) == [["drift"], ["ran"]]
    assert sort_all([[failed("KeyError", "'a'")], [failed("KeyError", "'a'")]]) == [["own"], ["own"]]


def test_names_are_read_through_magics_and_changes_in_place() -> None:
    names = Names.of("%matplotlib inline\nfiles = !ls\n%timeit f(y)\ndf.loc[0, 'a'] = z\nimport a.b as c\nhelp?")
    assert names.made == {"files", "df", "c"}
    assert {"f", "y", "df", "z"} <= names.used


def test_cells_of_both_formats_are_read_and_failures_of_their_author_are_known() -> None:
    new = {"cells": [{"cell_type": "code", "source": ["x\n", "y"], "outputs": [{"output_type": "error"}]}]}
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "x", "language": "python", "outputs": []}]}]}
    text = {"cells": [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": " \n"}]}
    assert list(cells_of(new)) == [Cell("x\ny", is_meant_to_fail=True)]
    assert list(cells_of(old)) == [Cell("x")]
    assert list(cells_of(text)) == []


def test_the_manifest_names_commits_and_licences() -> None:
    assert all(len(each.commit) == 40 and each.licence and each.cells and "/" in each.name for each in repositories())
