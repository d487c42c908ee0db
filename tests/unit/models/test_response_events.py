"""The events of the Responses API, from servers that send all of them and from those that do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Delta,
    Finish,
    Json,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from agent_tools.models.reply_limits import MAX_CALLS
from agent_tools.models.response_reader import ResponseReader

THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "Six."}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "python", "arguments": '{"code": "6"}'}
USAGE = {"input_tokens": 3, "output_tokens": 2}
END = {"type": "response.completed", "response": {"output": [THOUGHT, MESSAGE, CALL], "usage": USAGE}}
ENDED = [Usage(3, 2), Finish("tool_calls")]
CALLED = [
    CallStarted(0, "c1", "python"),
    ArgumentsDelta(0, '{"code": "6"}'),
    CallComplete(0, "c1", "python", '{"code": "6"}'),
]


def event(kind: str, **fields: Any) -> Json:
    return {"type": f"response.{kind}", **fields}


def item(kind: str, place: int, value: Json) -> Json:
    return event(f"output_item.{kind}", output_index=place, item=value)


FULL = [
    event("created"),
    item("added", 0, {"type": "reasoning"}),
    event("reasoning_summary_text.delta", delta="H"),
    event("reasoning_summary_text.delta", delta="m."),
    item("done", 0, THOUGHT),
    item("added", 1, {"type": "message", "content": []}),
    event("output_text.delta", delta="Si"),
    event("output_text.delta", delta="x."),
    event("output_text.done", text="Six."),
    item("done", 1, MESSAGE),
    item("added", 2, CALL),
    event("function_call_arguments.delta", output_index=2, delta='{"code": "6"}'),
    item("done", 2, CALL),
    END,
]


def read(events: Iterable[Json]) -> list[Delta]:
    reader = ResponseReader()
    deltas = [delta for each in events for delta in reader.read(each)]
    assert reader.is_over
    return [*deltas, *reader.finish()]


def without(*kinds: str) -> list[Json]:
    return [each for each in FULL if not any(kind in each["type"] for kind in kinds)]


def test_all_events_are_told_as_they_come() -> None:
    assert read(FULL) == [
        *(ReasoningDelta("H"), ReasoningDelta("m."), TextDelta("Si"), TextDelta("x.")),
        *(*CALLED, *ENDED),
    ]


@pytest.mark.parametrize(
    "left_out",
    [
        *(["delta"], ["delta", "output_text.done"], ["delta", "added"], ["delta", "output_item.done"]),
        *(["delta", "output_item", "output_text"], ["response.created", "delta", "added", "output_text.done"]),
    ],
)
def test_what_no_delta_has_told_is_taken_from_what_is_whole(left_out: list[str]) -> None:
    told = read(without(*left_out))
    texts = [delta for delta in told if isinstance(delta, TextDelta)]
    assert texts == [TextDelta("Six.")]
    if "output_item.done" not in left_out:
        assert told == [ReasoningDelta("Hm."), TextDelta("Six."), *CALLED, *ENDED]


def test_a_response_that_did_not_come_as_a_stream_is_read() -> None:
    assert [*ResponseReader().read_whole(END["response"])] == [
        ReasoningDelta("Hm."),
        TextDelta("Six."),
        *CALLED,
        *ENDED,
    ]


@pytest.mark.parametrize(
    "body",
    [
        *({"choices": []}, {"object": "list"}, {"status": "in_progress"}, {"status": "cancelled", "output": []}),
        {"status": "completed"},
    ],
)
def test_a_whole_body_that_is_no_ended_response_is_no_answer(body: Json) -> None:
    with pytest.raises(TypeError):
        list(ResponseReader().read_whole(body))


def test_what_the_end_alone_holds_is_told_beside_what_came_before() -> None:
    assert read(without("output_text", "output_item.done")) == [
        *(ReasoningDelta("H"), ReasoningDelta("m."), *CALLED[:2]),
        *(TextDelta("Six."), CALLED[2], *ENDED),
    ]


@pytest.mark.parametrize("last", [[THOUGHT, MESSAGE, {**CALL, "call_id": "other"}], [{**CALL, "call_id": "other"}], []])
@pytest.mark.parametrize("left_out", [(), ("output_item.done",), ("delta",), ("delta", "added")])
def test_a_call_that_the_last_event_lists_elsewhere_under_another_id_is_one_call(
    last: list[Json], left_out: tuple[str, ...]
) -> None:
    stream = [each for each in without(*left_out) if each is not END]
    found = read([*stream, event("completed", response={"output": last})])
    calls = [delta for delta in found if isinstance(delta, CallStarted | ArgumentsDelta | CallComplete)]
    assert calls == CALLED


def test_two_calls_of_a_stream_stay_two_where_the_last_event_has_other_ids() -> None:
    calls = [{**CALL, "call_id": f"c{place}", "arguments": f'{{"code": "{place}"}}'} for place in (1, 2)]
    stream = [item(kind, place, call) for place, call in enumerate(calls) for kind in ("added", "done")]
    last = [{**call, "call_id": f"other{place}"} for place, call in enumerate(calls)]
    found = read([*stream, event("completed", response={"output": last})])
    assert [delta.id for delta in found if isinstance(delta, CallComplete)] == ["c1", "c2"]


def test_calls_without_places_are_told_apart_and_one_that_is_told_twice_is_one() -> None:
    calls = [{"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in ("a", "b", "a")]
    told = read([*(event("output_item.done", item=call) for call in calls), event("completed", response={})])
    assert [(call.index, call.id) for call in told if isinstance(call, CallComplete)] == [(0, "a"), (1, "b")]


def test_a_refusal_is_no_text() -> None:
    part = {"type": "refusal", "refusal": "No."}
    whole = {"type": "message", "content": [part]}
    end = event("completed", response={})
    for events in (
        [event("refusal.delta", delta="No."), event("refusal.done", refusal="No."), item("done", 0, whole), end],
        [event("refusal.done", refusal="No."), item("done", 0, whole), end],
        [item("done", 0, whole), end],
    ):
        assert read(events) == [RefusalDelta("No."), Finish("stop")]


def test_reasoning_is_told_once_where_both_of_its_kinds_come() -> None:
    events = [
        event("reasoning_text.delta", delta="Raw"),
        event("reasoning_summary_text.delta", delta="Summary"),
        event("reasoning_text.delta", delta=" words"),
        item("done", 0, THOUGHT),
        event("completed", response={}),
    ]
    assert read(events)[:-1] == [ReasoningDelta("Raw"), ReasoningDelta(" words")]


def test_parts_of_a_summary_are_paragraphs() -> None:
    delta = event("reasoning_summary_text.delta", delta="A")
    events = [event("reasoning_summary_part.added", summary_index=0), delta]
    events += [event("reasoning_summary_part.added", summary_index=1), delta, event("completed", response={})]
    assert read(events)[:-1] == [ReasoningDelta("A"), ReasoningDelta("\n\n"), ReasoningDelta("A")]


@pytest.mark.parametrize(
    ("reason", "told"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "stop")]
)
def test_the_reason_of_an_end_is_that_of_chat_completions(reason: str | None, told: str) -> None:
    details = {"reason": reason} if reason else None
    assert read([event("incomplete", response={"incomplete_details": details})]) == [Finish(told)]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (
            event("failed", response={"error": {"code": "rate_limit_exceeded", "message": "Slow."}}),
            429,
            "rate_limit_exceeded",
        ),
        (event("failed", response={"error": {"code": "server_error", "message": "Slow."}}), None, "server_error"),
        ({"type": "error", "code": None, "message": "Slow."}, None, None),
    ],
)
def test_a_failure_has_the_server_s_name_for_it(failure: Json, status: int | None, code: str | None) -> None:
    with pytest.raises(ModelError) as raised:
        read([failure])
    assert (raised.value.status, raised.value.code, raised.value.detail) == (status, code, "Slow.")


def test_calls_are_bounded() -> None:
    with pytest.raises(ModelError, match=f"more than {MAX_CALLS} calls"):
        read([item("done", place, CALL) for place in range(MAX_CALLS + 1)])


def encrypted(number: int) -> Json:
    return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": f"gAAAA{number}"}


def call(number: int) -> Json:
    return {**CALL, "call_id": f"c{number}"}


@pytest.mark.parametrize("is_whole", [True, False])
def test_encrypted_reasoning_is_kept_with_what_comes_after_it(is_whole: bool) -> None:
    output = [encrypted(1), encrypted(2), MESSAGE, encrypted(3), call(1), call(2), encrypted(4), call(3), encrypted(5)]
    begun = [item("added", place, {**value, "encrypted_content": "half"}) for place, value in enumerate(output)]
    ended = [item("done", place, value) for place, value in enumerate(output)]
    end = {"type": "response.completed", "response": {"output": output}}
    events = [] if is_whole else [each for pair in zip(begun, ended) for each in pair]
    found = read([*events, end])
    kept = {each.id: each.more for each in found if isinstance(each, CallComplete)}
    assert kept == {
        "c1": {"reasoning_items": (encrypted(3),)},
        "c2": {},
        "c3": {"reasoning_items": (encrypted(4),)},
    }
    assert found[-1] == Finish("tool_calls", {"reasoning_items": (encrypted(1), encrypted(2))})


def test_arguments_of_a_call_that_was_not_announced_come_with_its_end() -> None:
    early = event("function_call_arguments.delta", output_index=2, delta='{"code"')
    assert [each for each in read([early, item("done", 2, CALL), END]) if each in CALLED] == CALLED
