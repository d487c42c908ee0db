"""The outputs and the status of a call, from what its code did."""

from __future__ import annotations

import pytest

from agent_tools.agents.steps import CallDone
from agent_tools.errors import ToolServiceError
from agent_tools.gateway.responses.outputs import outputs_of, status_of
from agent_tools.results.execution import Died, Error, Execution, Notice, Omitted, Stream, TimedOut
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
    found = [output.json["logs"] for output in outputs_of(done, lambda *_: "")]
    assert found == logs or logs is None
    assert all(found)
    assert not any("\r" in log for log in found)
