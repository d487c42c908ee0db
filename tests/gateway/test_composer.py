"""From steps to events, as tables: what the composer makes of a turn, without a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agent_tools.agents.steps import (
    Call,
    CallBegun,
    CallDelta,
    CallDone,
    CallReady,
    CallRunning,
    Finished,
    ReasoningDelta,
    RoundDone,
    Step,
    TextDelta,
)
from agent_tools.errors import ToolServiceError
from agent_tools.execution import Died, Error, Execution, Omitted, Result, Stream, TimedOut
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.responses.body import fresh_body
from agent_tools.gateway.responses.citations import MAX_ENDS, MAX_LINKS, citations
from agent_tools.gateway.responses.composer import Composer, ResponseContext
from agent_tools.gateway.responses.outputs import outputs_of, status_of
from agent_tools.gateway.responses.request import read_request
from agent_tools.models.base import Usage
from tests.gateway.strict import check_stream

CALL = Call("c1", "python", '{"code": "1"}')
OTHER = Call("c2", "python", '{"code": "2"}')


def composed(*steps: Step, failure: ApiError | None = None) -> list[dict[str, Any]]:
    request = read_request({"model": "m", "input": "Go."})
    scene = ResponseContext("python", frozenset({"weather"}), "cntr_1", True, lambda name: None, lambda *_: "data:")
    composer = Composer(fresh_body(request), scene)
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
    ran: list[Step] = [CallRunning("c1"), done[0], CallRunning("c2"), done[1]]
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


@pytest.mark.parametrize(
    ("done", "status", "logs"),
    [
        (CallDone(CALL, "", Execution((Stream("stdout", "a\n"), Stream("stderr", "b\n")))), "completed", ["a\nb\n"]),
        (
            CallDone(CALL, "", Execution((Stream("stdout", "a"), Omitted("x"), Stream("stdout", "b")))),
            "completed",
            None,
        ),
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[a](sandbox:/mnt/data/a.csv)", ["a.csv"]),
        ("See /mnt/data/a.csv.", ["a.csv"]),
        ("`sandbox:/mnt/data/sub/b c.png`", ["sub/b"]),
        ("[a](sandbox:/mnt/data/my report (1).csv) and [b](sandbox:/mnt/data/a.csv)", ["my report (1).csv", "a.csv"]),
        ("[a](<sandbox:/mnt/data/my report (1).csv>)", ["my report (1).csv"]),
        ("[a](sandbox:/mnt/data/my%20report%20%281%29.csv).", ["my report (1).csv"]),
        ('**sandbox:/mnt/data/a.csv**, _/mnt/data/a.csv_ and "/mnt/data/a.csv"', ["a.csv"] * 3),
        ("sandbox:/mnt/data/数据 表.csv", ["数据 表.csv"]),
        ("sandbox:/mnt/data/数据 表.csv。", ["数据 表.csv"]),
        ("sandbox:/mnt/data/it's [new].txt, it is", ["it's [new].txt"]),
        ("sandbox:/mnt/data/100%.txt", ["100%.txt"]),
        ("sandbox:/mnt/data/a.csv.bak", []),
        ("/mnt/data/../a.csv /mnt/data//a.csv", []),
        ("(sandbox:/mnt/data/b%20c.png)", ["b c.png"]),
        ("sandbox:/mnt/data/ and /mnt/other/a.csv", []),
    ],
)
def test_links_to_files_are_cited_where_they_stand(text: str, names: list[str]) -> None:
    known = {"a.csv", "sub/b", "b c.png", "my report (1).csv", "数据 表.csv", "it's [new].txt", "100%.txt"}
    found = citations(text, "cntr_1", lambda name: f"id of {name}" if name in known else None)
    assert [each.file_id for each in found] == [f"id of {name}" for name in names]
    for each in found:
        assert "/mnt/data/" in text[each.start_index : each.end_index]


def test_a_text_full_of_links_is_not_looked_at_for_ever() -> None:
    asked = []
    citations("sandbox:/mnt/data/a.b c (d) " * 50_000, "cntr_1", lambda name: asked.append(name))  # type: ignore[func-returns-value]
    assert 0 < len(asked) <= MAX_LINKS * MAX_ENDS


def test_a_field_of_the_wrong_kind_is_named() -> None:
    fields = Fields({"flag": "yes", "number": True}, "outer")
    for read in (lambda: fields.flag("flag"), lambda: fields.number("number", 0, 1), lambda: fields.needed("none")):
        with pytest.raises(ApiError) as refused:
            read()
        assert str(refused.value.param).startswith("outer.")
