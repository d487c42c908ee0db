"""Notebooks of sessions: valid by nbformat, the same bytes for the same runs, and nothing active in them."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest

from agent_tools.results.execution import Execution
from agent_tools.results.notebook import LEFT_OUT, MAX_BYTES, History, notebook_of
from agent_tools.results.outputs import (
    Changes,
    Died,
    Display,
    Error,
    FileChange,
    HostCall,
    Notice,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
)

PNG = b"\x89PNG"


def _outputs(*outputs: Output, rich: bool = False) -> list[Any]:
    """Return the outputs of a valid notebook of one run."""
    found = notebook_of([("code", Execution(outputs))], rich=rich)
    nbformat.validate(nbformat.from_dict(found))
    return found["cells"][0]["outputs"]  # type: ignore[no-any-return]


def test_streams_end_lines_at_line_feeds_alone() -> None:
    (output,) = _outputs(Stream("stdout", "ä \x0b odd \u2028 line\nnext"))
    assert output == {"output_type": "stream", "name": "stdout", "text": ["ä \x0b odd \u2028 line\n", "next"]}


def test_a_progress_bar_is_its_last_state() -> None:
    (output,) = _outputs(Stream("stderr", " 1%\r99%\n"))
    assert output["text"] == ["99%\n"]


def test_values_and_pictures_keep_their_types() -> None:
    spec = {"data": [1.5, None]}
    result, figure = _outputs(
        Result({"text/plain": "[1,\n2]"}), Display({"image/png": PNG, "application/vnd.plotly.v1+json": spec})
    )
    assert (result["output_type"], result["execution_count"]) == ("execute_result", 1)
    assert result["data"] == {"text/plain": ["[1,\n", "2]"]}
    assert figure["data"] == {"image/png": "iVBORw==\n", "application/vnd.plotly.v1+json": spec}


@pytest.mark.parametrize("mime", ["text/html", "image/svg+xml", "application/javascript"])
def test_active_types_are_left_out_unless_wanted(mime: str) -> None:
    shown = Display({"text/plain": "<HTML>", mime: "<script>alert(1)</script>"})
    assert list(_outputs(shown)[0]["data"]) == ["text/plain"]
    assert mime in _outputs(shown, rich=True)[0]["data"]
    assert _outputs(Display({mime: "x"}))[0]["data"] == {"text/plain": [""]}


def test_an_updated_display_is_shown_in_its_first_place() -> None:
    updated = Display({"text/plain": "two"}, display_id="d", is_update=True)
    outputs = _outputs(Display({"text/plain": "one"}, display_id="d"), Stream("stdout", "x"), updated)
    assert [output.get("data") for output in outputs] == [{"text/plain": ["two"]}, None]


def test_endings_are_errors_and_notes_are_lines_of_stderr() -> None:
    outputs = _outputs(
        Restarted("it was idle"),
        Notice("A fence was left out."),
        Omitted("5 MB of output"),
        Error("ZeroDivisionError", "division by zero", "Traceback\n  1/0"),
        TimedOut(3.0, state_kept=True),
        Died("it was killed"),
        HostCall(1, "f", "", 0.0, 0.1, "ok"),
    )
    assert [output["output_type"] for output in outputs] == ["stream"] * 3 + ["error"] * 3
    assert [output["ename"] for output in outputs[3:]] == ["ZeroDivisionError", "TimedOut", "Died"]
    assert outputs[3]["traceback"] == ["Traceback", "  1/0"]


def test_the_same_runs_make_the_same_bytes_and_each_cell_its_own_id() -> None:
    runs = [("1", Execution(changed=Changes((FileChange("a.csv", 3, True),)))), ("1", Execution())]
    found = notebook_of(runs)
    assert json.dumps(found) == json.dumps(notebook_of(runs))
    assert len({cell["id"] for cell in found["cells"]}) == 2
    assert found["cells"][0]["metadata"]["agent_tools"]["files"] == ["a.csv"]


def test_pictures_over_the_limit_are_left_out_with_a_line() -> None:
    big = Display({"image/png": bytes(MAX_BYTES)})
    first, second = _outputs(big, Display({"image/png": PNG}))
    assert "image/png" in first["data"]
    assert second["text"] == [f"{LEFT_OUT}\n"]


def test_markdown_and_code_cells_make_a_valid_notebook() -> None:
    found = notebook_of([("# Sales\n", None), ("", Execution())])
    nbformat.validate(nbformat.from_dict(found))
    assert [cell["source"] for cell in found["cells"]] == [["# Sales\n"], []]


def test_a_history_has_the_last_runs_within_its_length_and_bytes() -> None:
    history = History(2)
    for code in "abc":
        history.add(code, Execution())
    assert [code for code, _ in history.runs] == ["b", "c"]
    big = Execution((Display({"image/png": bytes(MAX_BYTES - 8)}),))
    history.add("d", big)
    assert [code for code, _ in history.runs] == ["c", "d"]
    history.add("e" * 8, Execution())
    assert [code for code, _ in history.runs] == ["e" * 8]
