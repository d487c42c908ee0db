"""Conversations made shorter: by a request for it, and where a client allows only so many tokens."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx
import pytest
from openai.types.responses import CompactedResponse, ResponseInputMessageItem

from agent_tools.bodies.json_body import MAX_PARTS
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.summary_item import ASKED, compaction_item, read_summary, split
from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import code, post, stream
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check

LONG = "The number is 42. " * 400
RULE = [{"type": "compaction", "compact_threshold": 1_000}]
SUMMARY = ScriptedReply("It is 42.", usage=Usage(100, 5))


def told(gateway: Gateway, number: int = -1) -> list[tuple[str, Any]]:
    messages = gateway.upstream.requests[number]["messages"]  # type: ignore[attr-defined]
    return [(message["role"], message.get("content")) for message in messages]


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_conversation_is_summed_up(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 42"), "Ok.", SUMMARY, "42."]})
    first = post(gateway, input=LONG).json()
    made = gateway.client().responses.compact(model="m", previous_response_id=first["id"], instructions="Be brief.")
    assert (made.object, made.usage.output_tokens) == ("response.compaction", 5)
    assert told(gateway)[0] == ("system", "Be brief.")
    assert told(gateway)[-1] == ("user", ASKED)
    assert "tools" not in gateway.upstream.requests[-1]  # type: ignore[attr-defined]
    items = [item.model_dump(exclude_none=True, warnings=False) for item in made.output]  # beyond its own types
    assert [(item["type"], item.get("role")) for item in items] == [("message", "user"), ("compaction", None)]
    answer = post(gateway, input=[said("Old."), *items, said("Which?")], tools=[]).json()
    assert answer["status"] == "completed"
    summary = ("user", "(Summary of the conversation so far:)\n\nIt is 42.")
    assert told(gateway) == [summary, ("user", "Which?")]


def test_the_route_needs_no_trigger_and_minds_none(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [SUMMARY]})
    body = {"model": "m", "input": [said("Go."), {"type": "compaction_trigger"}]}
    made = httpx.post(f"{gateway.url}/v1/responses/compact", json=body).json()
    assert [item["type"] for item in made["output"]] == ["message", "compaction"]


def test_a_trigger_makes_a_response_of_a_summary(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 42"), "Ok.", SUMMARY, "42.", ""]})
    first = post(gateway, input=LONG).json()
    trigger = {"type": "compaction_trigger"}
    events = stream(gateway, input=[said("Sum up."), trigger], previous_response_id=first["id"], tools=[])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:] == ["output_item.added", "compaction.compacting", "output_item.done", "completed"]
    body = events[-1]["response"]
    (item,) = body["output"]
    compacting = {key: events[3][key] for key in ("item_id", "output_index", "sequence_number")}
    assert compacting == {"item_id": item["id"], "output_index": 0, "sequence_number": 3}
    assert (item["type"], body["usage"]["output_tokens"]) == ("compaction", 5)
    summary = ("user", "(Summary of the conversation so far:)\n\nIt is 42.")
    post(gateway, input="Which?", previous_response_id=body["id"], tools=[])
    assert told(gateway) == [summary, ("user", "Which?")]
    assert post(gateway, input=[said("a"), trigger], tools=[]).json()["error"]["code"] == "no_summary"
    wrong = post(gateway, input=[trigger, said("b")], tools=[])
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input[0].type")


def test_what_the_user_said_comes_before_the_summary(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One.", "Two.", SUMMARY]})
    first = post(gateway, input=[said("a"), {"role": "developer", "content": "Be brief."}, said("b")], tools=[]).json()
    second = post(gateway, input="c", previous_response_id=first["id"], tools=[]).json()
    body = {"model": "m", "previous_response_id": second["id"], "input": "d"}
    made = httpx.post(f"{gateway.url}/v1/responses/compact", json=body).json()
    *messages, compaction = made["output"]
    for message in messages:
        check(ResponseInputMessageItem, message)
    assert [message["content"][0]["text"] for message in messages] == ["a", "b", "c", "d"]
    assert compaction["type"] == "compaction"
    assert len({message["id"] for message in messages}) == len(messages)


def test_nothing_is_stored_of_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [SUMMARY]})
    made = httpx.post(f"{gateway.url}/v1/responses/compact", json={"model": "m", "input": "Go."}).json()
    check(CompactedResponse, {**made, "output": made["output"][1:]})
    check(ResponseInputMessageItem, made["output"][0])  # as OpenAI sends it, beyond its own types
    assert [(item["type"], item.get("role")) for item in made["output"]] == [("message", "user"), ("compaction", None)]
    assert made["output"][0]["content"][0]["text"] == "Go."
    assert httpx.get(f"{gateway.url}/v1/responses/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    "reply", [ScriptedReply(""), ScriptedReply("Half of", finish_reason="length")], ids=["none", "half"]
)
def test_no_summary_is_a_failure(new_gateway: NewGateway, reply: ScriptedReply) -> None:
    gateway = new_gateway({"m": [reply]})
    answer = httpx.post(f"{gateway.url}/v1/responses/compact", json={"model": "m", "input": "Go."})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_summary")


@pytest.mark.parametrize("by", ["previous_response_id", "conversation", "input"])
def test_a_long_conversation_is_summed_up_before_the_model_is_asked(new_gateway: NewGateway, by: str) -> None:
    replies = [ScriptedReply("Ok.", usage=Usage(1, 1)), SUMMARY, ScriptedReply("42.", usage=Usage(10, 2)), "Yes."]
    gateway = new_gateway({"m": replies})
    id_ = httpx.post(f"{gateway.url}/v1/conversations").json()["id"]
    common: dict[str, Any] = {"context_management": RULE, "tools": [], **({by: id_} if by == "conversation" else {})}
    first = post(gateway, input=LONG, **common).json()
    assert [item["type"] for item in first["output"]] == ["message"]  # there is nothing before it
    more = {by: first["id"]} if by == "previous_response_id" else {}
    before = [said(LONG), *first["output"]] if by == "input" else []
    events = stream(gateway, input=[*before, said("Which?")], **common, **more)
    second = events[-1]["response"]
    assert [item["type"] for item in second["output"]] == ["compaction", "message"]
    assert (second["usage"]["input_tokens"], second["usage"]["output_tokens"]) == (110, 7)
    summary = ("user", "(Summary of the conversation so far:)\n\nIt is 42.")
    assert told(gateway) == [summary, ("user", "Which?")]
    more = {by: second["id"]} if by == "previous_response_id" else {}
    before = [*before, said("Which?"), *second["output"]] if by == "input" else []
    post(gateway, input=[*before, said("Sure?")], **common, **more)
    assert told(gateway)[-2:] == [("assistant", "42."), ("user", "Sure?")]
    assert LONG not in str(told(gateway))
    assert "Which?" in str(told(gateway)[:-1])


def test_a_summary_that_fails_changes_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok.", ScriptedReply("Half", finish_reason="length"), "42."]})
    first = post(gateway, input=LONG, tools=[]).json()
    body = post(gateway, context_management=RULE, previous_response_id=first["id"], tools=[]).json()
    assert [item["type"] for item in body["output"]] == ["message"]
    assert told(gateway)[0] == ("user", LONG)


def test_the_summary_takes_of_the_time_limit_of_its_response(new_gateway: NewGateway) -> None:
    pause = threading.Event()
    replies = iter([ScriptedReply("Ok."), ScriptedReply("It is 42."), ScriptedReply("42.")])

    def slow(_: Any) -> ScriptedReply:
        pause.wait(1.5)
        return next(replies)

    gateway = new_gateway({"m": slow}, turn_timeout=2.5)
    first = post(gateway, input=LONG, tools=[]).json()
    body = post(gateway, context_management=RULE, previous_response_id=first["id"], tools=[]).json()
    assert body["error"]["message"] == "The response exceeded its time limit."


def test_a_summary_of_many_parts_was_not_made_here() -> None:
    made = compaction_item("42.", "Sure?")
    assert read_summary(made, "input[0]") == "42.\n\nThe user's newest message:\n\nSure?"
    many = base64.b64encode(b'{"summary": "42.", "more": [' + b"0," * MAX_PARTS + b"0]}").decode()
    with pytest.raises(ApiError, match="was not made here"):
        read_summary({"encrypted_content": many}, "input[0]")


def test_calls_that_are_being_answered_are_not_torn_apart() -> None:
    calling = [said("Go."), {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "1"}]
    assert split(calling) == ([], calling)
    assert split([*calling, said("a"), said("b")]) == (calling, [said("a"), said("b")])
    assert split([said("a")]) == ([], [said("a")])
