"""The outputs and the status of a call, from what its code did."""

from __future__ import annotations

import pytest

from agent_tools.agents.steps import CallDone
from agent_tools.errors import ToolServiceError
from agent_tools.gateway.responses.outputs import MAX_DETAILS, Details, outputs_of, status_of
from agent_tools.results.execution import (
    Died,
    Display,
    Error,
    Execution,
    Notice,
    Omitted,
    Output,
    Result,
    Stream,
    TimedOut,
)
from tests.gateway.asking import CALL


@pytest.mark.parametrize(
    ("done", "status", "logs"),
    [
        (CallDone(CALL, "", Execution((Stream("stdout", "a\n"), Stream("stderr", "b\n")))), "completed", ["a\nb\n"]),
        (
            CallDone(CALL, "", Execution((Stream("stdout", "a"), Omitted("x"), Stream("stdout", "b")))),
            "completed",
            None,
        ),
        (CallDone(CALL, "", Execution((Notice("The disk is full."),))), "completed", ["The disk is full."]),
        (CallDone(CALL, "", Execution((Error("E", "v", "tb"),))), "completed", ["tb"]),
        (CallDone(CALL, "", Execution((Stream("stdout", "10%\r20%"), TimedOut(1, True)))), "failed", None),
        (CallDone(CALL, "", Execution((Died("signal 9"),))), "failed", None),
        (CallDone(CALL, "no code", failure=ToolServiceError(code="InvalidParams", message="x")), "failed", ["no code"]),
        (CallDone(CALL, "why", failure=ToolServiceError(code="NotCalled", message="x")), "incomplete", ["why"]),
        (CallDone(CALL, "", Execution()), "completed", []),
    ],
)
def test_what_code_did_is_its_items_status_and_logs(done: CallDone, status: str, logs: list[str] | None) -> None:
    assert status_of(done) == status
    found = [output["logs"] for output in outputs_of(done, lambda *_: "")]
    assert found == logs or logs is None
    assert all(found)
    assert not any("\r" in log for log in found)


PLOTLY = {"data": [{"y": [1, 2]}], "layout": {}}
MIME = "application/vnd.plotly.v1+json"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (Error("KeyError", "'a'", "tb"), "KeyError"),
        (TimedOut(1, True), "Time limit reached"),
        (Died("signal 9"), "The kernel died"),
    ],
)
def test_the_name_of_an_error_is_a_detail_for_who_asks(output: Output, error: str) -> None:
    done = CallDone(CALL, "", Execution((Stream("stdout", "a"), output)))
    assert [each.get("error") for each in outputs_of(done, lambda *_: "", Details())] == [None, error]
    assert [list(each) for each in outputs_of(done, lambda *_: "")] == [["type", "logs"]] * 2


def test_a_figures_data_goes_with_its_picture_or_its_text() -> None:
    data = {"text/plain": "Figure()", MIME: PLOTLY}
    drawn = Display({**data, "image/png": b"\x89PNG"})
    done = CallDone(CALL, "", Execution((drawn, Result(data), Display({MIME: PLOTLY})), saved=()))
    figure = {"kind": "plotly", "data": PLOTLY}
    assert list(outputs_of(done, lambda _: "url", Details())) == [
        {"type": "image", "url": "url", "figure": figure},
        {"type": "logs", "logs": "Figure()", "figure": figure},
        {"type": "logs", "logs": "", "figure": figure},
    ]
    assert list(outputs_of(done, lambda _: "url")) == [
        {"type": "image", "url": "url"},
        {"type": "logs", "logs": "Figure()"},
    ]


def test_details_end_at_their_limit_and_the_outputs_stay() -> None:
    details = Details()
    text = "x" * (MAX_DETAILS // 3)
    assert [len(list(details.live(Stream("stdout", text)))) for _ in range(4)] == [1, 1, 0, 0]
    done = CallDone(CALL, "", Execution((Result({"text/plain": "Figure()", MIME: PLOTLY}),)))
    assert list(outputs_of(done, lambda _: "", details)) == [{"type": "logs", "logs": "Figure()"}]


def test_a_live_display_is_shown_once_and_its_changes_with_the_item() -> None:
    assert list(Details().live(Display({"text/plain": "1"}, "d"))) == [{"kind": "result", "text": "1"}]
    assert list(Details().live(Display({"text/plain": "2"}, "d", is_update=True))) == []


def test_a_picture_that_is_too_large_for_the_response_leaves_a_note() -> None:
    done = CallDone(CALL, "", Execution((Display({"image/png": b"\x89PNG"}),), saved=()))
    (log,) = outputs_of(done, lambda _: None)
    assert log == {
        "type": "logs",
        "logs": "[a picture of 4 bytes is left out: the response would become too large]",
    }
