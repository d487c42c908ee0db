"""The table of engines: what it makes of the words of doctor, the probe and pytest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supply.engines import BEGIN, END, PAGE, RESULTS, ROWS, failures, main, merged, outcomes, probed, with_table

PYTEST = """collecting ... collected 4 items / 1 deselected / 3 selected
tests/docker/test_pool.py::test_a[a name, with spaces] PASSED [ 33%]
tests/docker/test_pool.py::test_b
words of the test FAILED [ 66%]
tests/docker/test_pool.py::test_c ERROR [100%]
FAILED tests/docker/test_pool.py::test_b - assert 1 == 2
ERROR tests/docker/test_pool.py::test_c - OSError: no
"""
FOUND: dict[str, Any] = {
    "doctor": {"code": 0, "fails": []},
    "probe": {"counts": {"held": 90, "open": 0}, "bad": {}},
    "tests": {"tests/docker/test_pool.py": {"asked": 3, "passed": 1, "bad": {"t.py::test_b": "assert 1 == 2"}}},
}


def test_outcomes_count_what_was_asked_for_passed_and_failed() -> None:
    found = outcomes(PYTEST)
    assert (found["asked"], found["passed"]) == (3, 1)
    assert found["bad"] == {
        "tests/docker/test_pool.py::test_b": "assert 1 == 2",
        "tests/docker/test_pool.py::test_c": "OSError: no",
    }


def test_a_run_that_was_cut_off_passed_only_what_it_printed() -> None:
    found = outcomes("collected 9 items\ntests/contract/test_state.py::test_a PASSED [ 11%]\ntests/contract/test_s")
    assert (found["asked"], found["passed"], found["bad"]) == (9, 1, {})


def test_a_probe_that_did_not_start_says_why() -> None:
    assert probed("agent-tools: no\nengine") == {"failure": "agent-tools: no engine"}
    findings = [{"name": "DNS", "verdict": "open", "found": "answers"}]
    answer = {"summary": {"held": 1, "open": 1, "unknown": 0, "info": 0}, "findings": findings}
    assert probed(json.dumps(answer))["bad"] == {"DNS": "answers"}


def test_results_of_tests_that_were_not_run_again_stay() -> None:
    assert set(merged(FOUND, {**FOUND, "tests": {"tests/contract": {}}})["tests"]) == {
        "tests/docker/test_pool.py",
        "tests/contract",
    }


def test_the_table_stands_between_its_markers_and_names_what_does_not_hold() -> None:
    page = with_table(f"before\n{BEGIN}\nearlier\n{END}\nafter\n", {"docker-runc": FOUND})
    assert page.startswith(f"before\n{BEGIN}\n| ")
    assert page.endswith(f"|\n{END}\nafter\n")
    assert "earlier" not in page
    assert "pool 1 of 3" in page
    assert "`test_b`" in page
    assert failures(FOUND) == {"test_b": "assert 1 == 2"}


def test_the_page_shows_the_results() -> None:
    assert with_table(PAGE.read_text(), json.loads(RESULTS.read_text())) == PAGE.read_text()


def test_an_unknown_row_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-row"])
    said = capsys.readouterr().err
    assert all(name in said for name in ROWS)
