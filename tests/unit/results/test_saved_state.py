"""What became of variables, as values and as text."""

from __future__ import annotations

import pytest

from agent_tools.results.variables import MAX_NAMES_LISTED, MissingVariable, SavedState, VariablesReport


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (VariablesReport(), "Variables kept: none."),
        (VariablesReport(("a", "b")), "Variables kept: a, b."),
        (
            VariablesReport(("a",), (MissingVariable("lock", "TypeError: no"),)),
            "Variables kept: a.\nVariables missing:\n  lock: TypeError: no",
        ),
        (VariablesReport(problem="it ended"), "Variables kept: none.\nNothing is known of the rest: it ended."),
    ],
)
def test_a_report_says_in_sentences_what_is_there_and_what_not(report: VariablesReport, text: str) -> None:
    assert str(report) == text
    assert report.is_complete == ("missing" not in text and "Nothing" not in text)


def test_a_long_report_is_cut() -> None:
    names = tuple(f"v{number}" for number in range(MAX_NAMES_LISTED + 5))
    text = str(VariablesReport(names, tuple(MissingVariable(name, "no") for name in names)))
    assert text.count("and 5 more") == 2
    assert f"v{MAX_NAMES_LISTED}" not in text


def test_a_state_is_shown_without_its_bytes() -> None:
    state = SavedState(b"x" * 5000, VariablesReport(("a",)))
    assert str(state) == "5,000 bytes. Variables kept: a."
    assert "xxx" not in repr(state)
