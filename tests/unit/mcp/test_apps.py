"""The page for answers as one document, and what is remembered of runs for it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent_tools.mcp.activity import ActivityPlace, CodeActivity
from agent_tools.mcp.apps import BASE, MAX_OUTPUTS, MAX_RUNS, PAGE, PageRuns, page_resource
from agent_tools.results.execution import Execution, Output, Result, Stream

NOTHING = cast("Any", None)


def ran(code: str, *outputs: Output, owner: str = "me", container: str = "c") -> CodeActivity:
    activity = CodeActivity(ActivityPlace(NOTHING, NOTHING, lambda _: None, owner, container), code, 1)
    activity.execution = Execution(outputs or (Stream("stdout", code),))
    return activity


def test_the_page_is_one_document_that_loads_nothing() -> None:
    page = page_resource(PAGE, "")
    assert page is not None
    assert len(page.text) < 64 * 1024
    assert page.text.count("<script") == page.text.count("</script") == 1
    assert not [line for line in page.text.splitlines() if line.startswith(("import ", "export "))]
    for loading in ("http:", "https:", "src=", "url(", "@import", "innerHTML", "insertAdjacentHTML", "eval("):
        assert loading not in page.text, loading


@pytest.mark.parametrize("name", ["", "page.js", "../apps.py", "frame/../../figures.py", "plotly.min.js", "x" * 9_999])
def test_no_other_file_is_a_resource(name: str) -> None:
    assert page_resource(BASE + name, "/nowhere") is None
    assert page_resource(name, "/nowhere") is None


def test_outputs_are_found_by_owner_container_and_code() -> None:
    runs = PageRuns("/nowhere")
    for activity in (ran("a"), ran("b"), ran("c", owner="other"), ran("d", container="e")):
        runs.add(activity)
    found = [runs.find("me", "c", code).outputs for code in ("a", "b", "")]
    assert [each[0]["text"] for each in found] == ["a", "b", "b"]
    assert [runs.find(*key).status for key in (("me", "c", "c"), ("me", "e", "a"), ("x", "c", ""))] == ["unknown"] * 3


def test_a_run_that_could_not_be_done_shows_why_and_is_remembered_once() -> None:
    runs, failing = PageRuns("/nowhere"), ran("a")
    runs.add(failing, "No engine.")
    runs.add(ran("b"))
    runs.add(failing, "No engine.")
    assert runs.find("me", "c", "a").outputs[-1] == {"kind": "error", "text": "No engine."}
    assert runs.find("me", "c", "").outputs[0]["text"] == "b"


def test_what_is_remembered_has_limits_and_says_so() -> None:
    runs = PageRuns("/nowhere")
    large = "x" * (MAX_OUTPUTS // 3)
    runs.add(ran("a", *(Result({"text/plain": large}) for _ in range(4))))
    *first, note = runs.find("me", "c", "a").outputs
    assert (len(first), note) == (2, {"kind": "note", "text": "[... 2 outputs too large for this page left out ...]"})
    for number in range(MAX_RUNS):
        runs.add(ran(str(number)))
    assert runs.find("me", "c", "a").status == "unknown"


def test_runs_of_one_key_push_out_no_run_of_another() -> None:
    runs = PageRuns("/nowhere")
    runs.add(ran("a", owner="you"))
    for number in range(2 * MAX_RUNS):
        runs.add(ran(str(number)))
    assert runs.find("you", "c", "a").status == "done"
    assert runs.find("me", "c", str(MAX_RUNS)).status == "unknown"
