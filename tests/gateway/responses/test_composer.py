"""The events of a response, from the steps of a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agent_tools.agents.steps import (
    Call,
    CallBegun,
    CallDelta,
    CallDone,
    CallOutput,
    CallReady,
    CallRunning,
    Finished,
    ReasoningDelta,
    RoundDone,
    Step,
    TextDelta,
)
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.composer import Composer, ResponseContext
from agent_tools.gateway.responses.request import ResponseRequest, fresh_body, read_request
from agent_tools.models.base import Usage
from agent_tools.results.execution import Execution, Result, Stream
from tests.gateway.asking import CALL, CODE_TOOL, INCLUDE
from tests.gateway.strict import check_stream

WEATHER = {"type": "function", "name": "weather"}
OTHER = Call("c2", "python", '{"code": "2"}')


def new_composer(request: ResponseRequest) -> Composer:
    names = {"code_interpreter": "python"}
    scene = ResponseContext("cntr_1", lambda name: None, lambda *_: "data:", names)
    return Composer(fresh_body(request), request, scene)


def composed(*steps: Step, failure: ApiError | None = None) -> list[dict[str, Any]]:
    body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL, WEATHER], "include": INCLUDE}
    composer = new_composer(read_request(body))
    events = list(composer.begin())
    for step in steps:
        events += composer.feed(step)
    return check_stream([*events, *(composer.fail(failure) if failure else ())])


def kinds(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.").replace("code_interpreter_call", "code") for event in events][2:]


def test_calls_that_are_written_by_turns_keep_their_places() -> None:
    done = [CallDone(call, "told", Execution((Result({"text/plain": call.id}),))) for call in (CALL, OTHER)]
    begun: list[Step] = [CallBegun("c1", "python"), CallBegun("c2", "python"), CallDelta("c2", "..", "2")]
    ready: list[Step] = [CallDelta("c1", "..", "1"), CallReady(CALL, "1"), CallReady(OTHER, "2")]
    ran: list[Step] = [CallRunning("c1", "python"), done[0], CallRunning("c2", "python"), done[1]]
    events = composed(*begun, *ready, *ran, RoundDone(1, (), None, "tool_calls"), Finished("stop", Usage()))
    output = events[-1]["response"]["output"]
    assert [(item["code"], item["outputs"][0]["logs"]) for item in output] == [("1", "c1"), ("2", "c2")]
    assert [event["output_index"] for event in events if event["type"].endswith("code.delta")] == [1, 0]


def test_a_call_that_is_cut_while_it_is_written_is_incomplete() -> None:
    events = composed(
        CallBegun("c1", "python"), CallDelta("c1", '{"code": "pri', "pri"), Finished("cancelled", Usage())
    )
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    assert events[-1]["response"]["status"] == "cancelled"
    assert (events[-2]["item"]["status"], events[-2]["item"]["code"]) == ("incomplete", "pri")


def test_a_call_without_a_name_is_no_items_where_there_is_no_shell() -> None:
    events = composed(CallBegun("c1", ""), RoundDone(1, (), None, "stop"), Finished("stop", Usage()))
    assert events[-1]["response"]["output"] == []


def test_thoughts_and_words_take_turns() -> None:
    said: list[Step] = [ReasoningDelta("Hm"), ReasoningDelta("."), TextDelta("A"), RoundDone(1, (), None, "stop")]
    events = composed(*said, Finished("stop", Usage()))
    assert kinds(events) == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("pending", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("rounds", "incomplete", "max_messages"),
        ("cancelled", "cancelled", None),
        ("deadline", "failed", None),
    ],
)
def test_how_a_turn_ends_is_how_its_response_does(reason: str, status: str, why: str | None) -> None:
    body = composed(TextDelta("A"), Finished(reason, Usage(1, 2)))[-1]["response"]
    assert body["status"] == status
    assert (body["incomplete_details"] or {}).get("reason") == why
    assert body["usage"]["total_tokens"] == 3


def test_a_failure_closes_what_is_open_and_is_told_twice() -> None:
    events = composed(TextDelta("A"), failure=ApiError(429, "too fast", code="rpm"))
    assert kinds(events)[-3:] == ["output_item.done", "error", "failed"]
    error = events[-2]
    assert (error["message"], error["code"], error["error"]["type"]) == ("too fast", "rpm", "rate_limit_error")
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "too fast"}


def test_outputs_of_running_code_are_events_only_for_who_asks() -> None:
    steps = [
        CallBegun("c1", "python"),
        CallReady(CALL, "1"),
        CallRunning("c1", "python"),
        CallOutput("c1", Stream("stdout", "a")),
    ]
    composer = new_composer(read_request({"model": "m", "input": "Go.", "include": ["agent_tools.outputs"]}))
    events = [event for step in steps for event in composer.feed(step)]
    assert events[-1]["type"] == "agent_tools.output"
    assert events[-1]["output"] == {"kind": "stdout", "text": "a"}
    assert (events[-1]["output_index"], events[-1]["sequence_number"]) == (0, len(events) - 1)
    plain = composed(*steps, CallDone(CALL, "a", Execution((Stream("stdout", "a"),))), Finished("stop", Usage()))
    assert not [event for event in plain if event["type"].startswith("agent_tools")]
