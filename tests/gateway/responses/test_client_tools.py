"""Tools that the client runs: custom ones, those of namespaces, and tools that are not here."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest

from agent_tools.bodies.json_body import MAX_PARTS
from agent_tools.gateway.responses.client_tools import (
    MAX_ABOUT,
    MAX_NAMESPACE,
    MAX_TOOLS,
    name_for_model,
    text_of_arguments,
)
from agent_tools.gateway.responses.tools import Tools, with_loaded
from agent_tools.gateway.store.records import ResponseEnd
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, post, stream
from tests.gateway.conftest import NewGateway
from tests.gateway.strict import check_response
from tests.opcodes import opcodes

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}
SPAWN = {"type": "function", "name": "spawn", "description": "Begins.", "parameters": {"type": "object"}}
CREW = {
    "type": "namespace",
    "name": "crew",
    "description": "Other agents.",
    "tools": [SPAWN, {**PATCH, "name": "note"}],
}
SEARCH = {"type": "web_search", "search_context_size": "low"}
DIFF = "*** Begin Patch\n“a”\n*** End Patch"


def asked(gateway: Any, number: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = gateway.upstream.requests[number]["messages"]
    return messages


def test_a_custom_tool_is_called_with_text_and_answered(new_gateway: NewGateway) -> None:
    reply = ScriptedReply(calls=[ScriptedCall("apply_patch", {"input": DIFF}, "c1")])
    gateway = new_gateway({"m": [reply, "Done."]})
    events = stream(gateway, tools=[PATCH])
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"], call["call_id"]) == (
        "custom_tool_call",
        "apply_patch",
        DIFF,
        "c1",
    )
    told = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [event.get("delta", event.get("input")) for event in told] == [DIFF, DIFF]
    (offered,) = gateway.upstream.requests[0]["tools"]
    assert "start: /.+/" in offered["function"]["description"]
    answer = {"type": "custom_tool_call_output", "call_id": "c1", "output": "applied"}
    check_response(post(gateway, tools=[PATCH], input=["Go.", call, answer][1:]).json())
    assistant, tool = asked(gateway)[-2:]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"input": DIFF}
    assert (tool["tool_call_id"], tool["content"]) == ("c1", "applied")


def test_tools_of_a_namespace_are_called_by_their_own_names(new_gateway: NewGateway) -> None:
    calls = [ScriptedCall("crew__spawn", {"n": 1}, "c1"), ScriptedCall("crew__note", {"input": "x"}, "c2")]
    gateway = new_gateway({"m": [ScriptedReply(calls=calls), "Done."]})
    body = post(gateway, tools=[CREW, SPAWN]).json()
    check_response(body)
    assert [(item["type"], item["namespace"], item["name"]) for item in body["output"]] == [
        ("function_call", "crew", "spawn"),
        ("custom_tool_call", "crew", "note"),
    ]
    assert body["tools"][0]["name"] == "crew"
    names = [tool["function"]["name"] for tool in gateway.upstream.requests[0]["tools"]]
    assert names == ["crew__spawn", "crew__note", "spawn"]
    answers = [
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
    ]
    assert post(gateway, tools=[CREW], input=[*body["output"], *answers]).status_code == 200
    called = [each["function"]["name"] for message in asked(gateway) for each in message.get("tool_calls", ())]
    assert called == ["crew__spawn", "crew__note"]


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "spawn", "namespace": "crew"}, "crew__spawn"),
        ({"type": "function", "name": "spawn"}, "crew__spawn"),
    ],
)
def test_each_can_be_chosen(new_gateway: NewGateway, choice: Any, name: str) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    assert post(gateway, tools=[CREW, PATCH], tool_choice=choice).status_code == 200
    assert gateway.upstream.requests[0]["tool_choice"]["function"]["name"] == name


def test_a_namespace_can_be_allowed_whole(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "crew"}]}
    assert post(gateway, tools=[CREW, PATCH, SPAWN], tool_choice=allowed).status_code == 200
    assert len(gateway.upstream.requests[0]["tools"]) == 2


def test_tools_that_are_not_here_are_refused_or_left_out(new_gateway: NewGateway) -> None:
    refused = post(new_gateway({"m": ["Ok."]}), tools=[CODE_TOOL, SEARCH])
    assert refused.status_code == 400
    assert "'web_search' are not supported here" in refused.json()["error"]["message"]
    assert "unknown_tools=ignore" in refused.json()["error"]["message"]
    gateway = new_gateway({"m": ["Ok."]}, unknown_tools="ignore")
    body = post(gateway, tools=[SEARCH, CODE_TOOL]).json()
    check_response(body)
    assert [tool["type"] for tool in body["tools"]] == ["code_interpreter"]
    assert len(gateway.upstream.requests[0]["tools"]) == 1
    chosen = post(gateway, tools=[SEARCH, CODE_TOOL], tool_choice={"type": "web_search"})
    assert chosen.status_code == 400


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([SPAWN, SPAWN], "tools[1].name"),
        ([{**CREW, "tools": [SEARCH]}], "tools[0].tools[0].type"),
        ([{**CREW, "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{**SPAWN, "name": f"f{number}"} for number in range(MAX_TOOLS + 1)], "tools"),
        ([{**CREW, "tools": [SPAWN] * (MAX_TOOLS + 1)}], "tools[0].tools"),
        ([{**CREW, "name": "n" * (MAX_NAMESPACE + 1)}], "tools[0].name"),
        ([{**CREW, "description": "d" * (MAX_ABOUT + 1)}], "tools[0].description"),
    ],
    ids=["twice", "not the client's", "no name", "many", "many in one", "a long name", "a long description"],
)
def test_what_cannot_be_offered_is_refused_by_name(new_gateway: NewGateway, tools: list[Any], param: str) -> None:
    answer = post(new_gateway({"m": ["Ok."]}), tools=tools)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_pictures_of_a_tool_reach_the_model_after_all_outputs(new_gateway: NewGateway) -> None:
    calls = [{"type": "function_call", "name": "spawn", "arguments": "{}", "call_id": each} for each in ("c1", "c2")]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,QQ=="}
    first = {"type": "function_call_output", "call_id": "c1", "output": [picture]}
    second = {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]}
    gateway = new_gateway({"m": ["Ok."]})
    assert post(gateway, tools=[SPAWN], input=[*calls, first, second]).status_code == 200
    *_, one, two, shown = asked(gateway)
    assert [message["role"] for message in (one, two, shown)] == ["tool", "tool", "user"]
    assert (one["content"], two["content"]) == ("(The output is shown below.)", "ok")
    assert shown["content"][1] == {"type": "image_url", "image_url": {"url": picture["image_url"]}}


def test_names_are_short_enough_for_every_server_and_differ() -> None:
    long = [name_for_model("a" * 60 + end, "n" * 40) for end in "xy"]
    assert [len(name) for name in long] == [64, 64]
    assert long[0] != long[1]
    assert name_for_model("a" * 80) == "a" * 80, "a name without a namespace is the client's"


MANY = '{"input": "x", "more": [' + "0," * MAX_PARTS + "0]}"


@pytest.mark.parametrize("arguments", ["*** Begin", '{"other": 1}', '["input"]', "[" * 50_000, '{"input": 3}', MANY])
def test_arguments_of_another_form_are_the_text(arguments: str) -> None:
    assert text_of_arguments(arguments) == arguments


FIND = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}}


def test_the_model_searches_the_tools_of_the_client_and_calls_what_was_found(new_gateway: NewGateway) -> None:
    reply = ScriptedReply(calls=[ScriptedCall("tool_search", {"goal": "work"}, "c1")])
    gateway = new_gateway({"m": [reply, ScriptedReply(calls=[ScriptedCall("crew__spawn", {"n": 1}, "c2")])]})
    events = stream(gateway, tools=[FIND])
    (search,) = events[-1]["response"]["output"]
    assert (search["type"], search["execution"], search["call_id"]) == ("tool_search_call", "client", "c1")
    assert (search["arguments"], events[-1]["response"]["tools"]) == ({"goal": "work"}, [FIND])
    found = {"type": "tool_search_output", "execution": "client", "call_id": "c1", "tools": [CREW]}
    items = [{"role": "user", "content": "Go."}, search, found]
    body = post(gateway, tools=[FIND], input=items).json()
    check_response(body)
    assert [(call["namespace"], call["name"]) for call in body["output"]] == [("crew", "spawn")]
    assert body["tools"] == [FIND]
    assert asked(gateway)[-1]["content"] == "Tools that can be called now: crew."


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
def test_tools_that_a_search_has_found_stay_for_the_conversation(new_gateway: NewGateway, by: str) -> None:
    found = {"type": "tool_search_output", "execution": "client", "call_id": "c1", "tools": [CREW]}
    gateway = new_gateway(
        {"m": [ScriptedReply(calls=[ScriptedCall("tool_search", {"goal": "x"}, "c1")]), "Ok.", "Ok."]}
    )
    named = {} if by == "previous_response_id" else {by: gateway.client().conversations.create().id}
    body = post(gateway, tools=[FIND], **named).json()
    for items in ([found], "Go on."):
        more = named or {by: body["id"]}
        body = post(gateway, tools=[FIND], input=items, **more).json()
        check_response(body)
        offered = [tool["function"]["name"] for tool in gateway.upstream.requests[-1]["tools"]]
        assert offered == ["tool_search", "crew__spawn", "crew__note"]


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
def test_additional_tools_stay_for_the_conversation(new_gateway: NewGateway, by: str) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    named = {} if by == "previous_response_id" else {by: gateway.client().conversations.create().id}
    more = {"type": "additional_tools", "role": "developer", "tools": [SPAWN]}
    body = post(gateway, tools=[], input=[more, {"role": "user", "content": "Go."}], **named).json()
    post(gateway, tools=[], input="Go on.", **(named or {by: body["id"]}))
    for request in gateway.upstream.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["spawn"]
        assert "Tools that can be called now: spawn." in [each["content"] for each in request["messages"]]


def test_additional_tools_stay_when_the_response_that_brought_them_is_deleted(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."] * 3})
    more = {"type": "additional_tools", "role": "developer", "tools": [CREW]}
    first = post(gateway, tools=[], input=[more, {"role": "user", "content": "Go."}]).json()
    second = post(gateway, tools=[], input=[more], previous_response_id=first["id"]).json()
    gateway.client().responses.delete(first["id"])
    third = post(gateway, tools=[], input="Go on.", previous_response_id=second["id"]).json()
    offered = [tool["function"]["name"] for tool in gateway.upstream.requests[-1]["tools"]]
    assert offered == ["crew__spawn", "crew__note"]
    (end,) = gateway.services.store.find(ResponseEnd, id=third["id"])
    assert json.loads(end.tools) == [CREW]  # once, although it came twice


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
def test_the_newest_tool_of_a_name_stays_for_the_conversation(new_gateway: NewGateway, by: str) -> None:
    gateway = new_gateway({"m": ["Ok."] * 3}, unknown_tools="ignore")
    named = {} if by == "previous_response_id" else {by: gateway.client().conversations.create().id}
    crew = {**CREW, "tools": [SPAWN, *({**SPAWN, "description": str(n)} for n in range(3)), *CREW["tools"]]}
    first = {"type": "additional_tools", "role": "developer", "tools": [SPAWN, crew, SEARCH]}
    variants = [{**SPAWN, "description": f"Begins {n}."} for n in range(3)]
    second = {**first, "tools": [*variants, {**CREW, "description": "New."}, {**SEARCH, "more": 1}]}
    body: dict[str, Any] = {}
    for items in ([first], [second], "Go on."):
        more = named or ({by: body["id"]} if body else {})
        body = post(gateway, tools=[], input=items, **more).json()
    (end,) = gateway.services.store.find(ResponseEnd, id=body["id"])
    assert json.loads(end.tools) == [variants[0], {**CREW, "description": "New."}]
    for request in gateway.upstream.requests[1:]:
        offered = {tool["function"]["name"]: tool["function"]["description"] for tool in request["tools"]}
        about = {"spawn": "Begins 0.", "crew__spawn": "Begins.\n\nNew."}
        assert offered == {**about, "crew__note": offered["crew__note"]}
        assert "New." in offered["crew__note"]


def test_additional_tools_are_offered_and_others_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    more = {"type": "additional_tools", "role": "developer", "tools": [SPAWN, SPAWN]}
    body = post(gateway, tools=[SPAWN], input=[more, {"role": "user", "content": "Go."}]).json()
    assert [tool["function"]["name"] for tool in gateway.upstream.requests[0]["tools"]] == ["spawn"]
    assert len(body["tools"]) == 1
    other = post(gateway, tools=[], input=[{**more, "tools": [SEARCH]}]).json()["error"]
    assert (other["param"], "unknown_tools=ignore" in other["message"]) == ("input[0].tools[0].type", True)
    by_server = post(gateway, tools=[{"type": "tool_search"}]).json()["error"]
    assert (by_server["param"], "'execution': 'client'" in by_server["message"]) == ("tools[0].type", True)


def test_tools_that_come_again_are_not_compared_with_all_others() -> None:
    many = [{"type": "function", "name": f"f{number}"} for number in range(MAX_TOOLS)]
    costs = []
    for tools in (many[:5], many):
        found = with_loaded(Tools(), [("input", tool) for tool in tools], "refuse")
        again = [("input", tools[0])] * 100
        costs.append(opcodes(partial(with_loaded, found, again, "refuse")))
    assert costs[1] < 2 * costs[0]


def test_a_search_whose_arguments_are_no_json_has_none(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(calls=[ScriptedCall("tool_search", {"goal": math.nan}, "c1")])]})
    (search,) = post(gateway, tools=[FIND]).json()["output"]
    assert (search["type"], search["arguments"]) == ("tool_search_call", {})
