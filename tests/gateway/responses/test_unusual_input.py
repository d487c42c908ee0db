"""Unusual input: odd characters, long code, calls written as text, long conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.gateway.requests.container_fields import MAX_FILES
from agent_tools.gateway.responses.history import UNKNOWN_OUTPUT, answered
from agent_tools.gateway.store.records import StoredCall
from agent_tools.models.reply_limits import MAX_CALLS
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, outputs, post, stream
from tests.gateway.conftest import NewGateway
from tests.written_code import ARGUMENTS, REFUSED, TEXTS, RecordingRuntime, Written, arguments


def test_the_clients_own_stream_reader_follows(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("6 * 7", piece=3), ScriptedReply(text="It is 42.", piece=4)]})
    with gateway.client().responses.stream(model="m", input="Go.", tools=[CODE_TOOL]) as events:  # type: ignore[list-item]
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == "It is 42."


def test_code_of_100_kb(new_gateway: NewGateway) -> None:
    text = "x = 'é\U0001f600\"\\\\'\r\n" * 6_000
    reply = ScriptedReply(calls=[ScriptedCall("python", json.dumps({"code": text}))], piece=97)
    events = stream(new_gateway({"m": [reply, "Ok."]}))
    deltas = [event["delta"] for event in events if event["type"].endswith("code.delta")]
    assert "".join(deltas) == text == outputs(events[-1]["response"])[0]["code"]


@pytest.mark.parametrize("text", ["print('\\ud800')", "'\\ud83d'", "print('a\\x00b')", "# \ud800\nprint(1)"])
def test_half_characters_and_nul_break_neither_this_turn_nor_the_next(new_gateway: NewGateway, text: str) -> None:
    call = ScriptedReply(text="\ud83d", calls=[ScriptedCall("python", json.dumps({"code": text}))], piece=1)
    gateway = new_gateway({"m": [call, "\ud83d half", "Ok."]})
    body = stream(gateway, include=INCLUDE)[-1]["response"]
    assert body["status"] == "completed"
    assert body["output"][-1]["content"][0]["text"] == "\ufffd half"
    assert post(gateway, previous_response_id=body["id"]).json()["status"] == "completed"


def test_a_character_whose_halves_came_apart_is_whole(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="a \ud83d\ude00 b", piece=1)]})
    events = stream(gateway)
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "a \U0001f600 b"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('{"name": "python", "arguments": {"code": "print(6*7)"}}', True),
        ('{"name": "python", "parameters": {"code": "print(6*7)"}}', True),
        ('{"name": "python", "arguments": "{\\"code\\": \\"print(6*7)\\"}"}', True),
        ('[{"name": "python", "arguments": {"code": "print(6*7)"}}]', True),
        ('```json\n{"name": "python", "arguments": {"code": "print(6*7)"}}\n```', True),
        ('<tool_call>\n{"name": "python", "arguments": {"code": "print(6*7)"}}\n</tool_call>', True),
        ('{"name": "Alice"}', False),
        ('{"name": "other", "arguments": {"code": "print(6*7)"}}', False),
        ('Sure: {"name": "python", "arguments": {"code": "print(6*7)"}} it is.', False),
    ],
)
def test_calls_written_as_text(new_gateway: NewGateway, text: str, is_call: bool, is_streamed: bool) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text=text, piece=7), "It is 42."]})
    asked = {"include": INCLUDE}
    body = stream(gateway, **asked)[-1]["response"] if is_streamed else post(gateway, **asked).json()
    assert [call["outputs"] for call in outputs(body)] == [[{"type": "logs", "logs": "42\n"}]] * is_call
    assert body["output"][-1]["content"][0]["text"] == ("It is 42." if is_call else text)


def test_without_the_tool_a_call_is_only_text(new_gateway: NewGateway) -> None:
    text = '{"name": "python", "arguments": {"code": "print(1)"}}'
    (item,) = post(new_gateway({"m": [text]}), tools=[]).json()["output"]
    assert item["content"][0]["text"] == text


def test_code_that_printed_nothing_is_not_told_as_unknown(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), "Ok.", "Ok."]})
    first = post(gateway, store=False, include=INCLUDE).json()
    assert outputs(first)[0]["outputs"] == []
    server = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "t", "arguments": "{}", "output": ""}
    said = [{"role": "user", "content": "Go."}, *first["output"], server, {"role": "user", "content": "And?"}]
    assert post(gateway, store=False, input=said).status_code == 200
    answers = [message["content"] for message in gateway.upstream.requests[-1]["messages"] if message["role"] == "tool"]
    assert answers == ["Finished execution.", ""]


def test_a_conversation_of_10_000_items(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    calls = [
        {"type": "code_interpreter_call", "id": f"ci_{n}", "code": "1", "container_id": "cntr_gone", "outputs": None}
        for n in range(5_000)
    ]
    call = StoredCall(id="ci_4999", owner="local", created_at=1.0, tool_answer="It was one.")
    gateway.services.store.add(call)
    said = [item for call in calls for item in ({"role": "user", "content": "Go."}, call)]
    first = post(gateway, input=said)
    assert first.status_code == 200, first.text
    assert post(gateway, input="And?", previous_response_id=first.json()["id"]).status_code == 200
    asked = gateway.upstream.requests[0]["messages"]
    assert len(asked) == 1 + 3 * 5_000
    assert [message["content"] for message in asked[-4::3]] == [UNKNOWN_OUTPUT, "It was one."]


def test_the_code_that_runs_is_the_code_that_is_shown(new_gateway: NewGateway) -> None:
    table = [*ARGUMENTS, *(Written(arguments(each.text), each.code, each.note) for each in TEXTS)]
    runtime = RecordingRuntime()
    for start in range(0, len(table), MAX_CALLS):
        part = table[start : start + MAX_CALLS]
        calls = [ScriptedCall("python", written.text) for written in part]
        runtime.ran.clear()
        gateway = new_gateway({"m": [ScriptedReply(calls=calls, piece=5), "Ok."]}, runtime=runtime)
        body = stream(gateway, include=INCLUDE)[-1]["response"]
        shown = outputs(body)
        ran = [written for written in part if written.code and written.code.strip()]
        assert runtime.ran == [written.code for written in ran]
        for written, item in zip(part, shown):
            logs = "".join(each["logs"] for each in item["outputs"])
            if written.code is not REFUSED and not written.code.strip():
                continue  # an empty call, which is not made
            assert item["status"] == ("completed" if written.code is not REFUSED else "failed"), written.text
            assert written.note in logs
            assert not ran or written.code in (REFUSED, item["code"])
        tool_answer = [
            message["content"] for message in gateway.upstream.requests[-1]["messages"] if message["role"] == "tool"
        ]
        assert all(written.note in content for written, content in zip(part, tool_answer))
    runtime.close_all()


def test_every_call_goes_to_the_model_with_its_output(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})

    def call(id_: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": id_, "name": "f", "arguments": "{}"}

    def output(id_: str, text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": id_, "output": text}

    user = {"role": "user", "content": "Go."}
    given = [user, call("a"), call("b"), user, output("b", "late"), call("a"), output("a", "1")]
    assert post(gateway, input=given).json()["status"] == "completed"
    messages = gateway.upstream.requests[0]["messages"]  # type: ignore[attr-defined]
    tool_answer = [(message["role"], message.get("tool_call_id"), message["content"]) for message in messages]
    assert tool_answer == [
        ("user", None, "Go."),
        ("assistant", None, ""),
        ("tool", "a", "(No output of this call was given.)"),
        ("tool", "b", "late"),
        ("user", None, "Go."),
        ("assistant", None, ""),
        ("tool", "a", "1"),
    ]
    lone = {"role": "tool", "tool_call_id": "z", "content": "Lone."}
    (told_of,) = answered([lone])
    assert told_of == {"role": "user", "content": "(The output of a call that is not part of the conversation:)\nLone."}


def test_two_tools_of_one_type_share_one_container_or_are_refused(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."] * 2})
    small, large = ({**CODE_TOOL, "container": {"type": "auto", "memory_limit": limit}} for limit in ("1g", "4g"))
    assert post(gateway, tools=[CODE_TOOL, small]).json()["status"] == "completed"
    answer = post(gateway, tools=[small, large])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "share one container" in answer.json()["error"]["message"]
    files = [[f"file-{start}{number}" for number in range(MAX_FILES * 6 // 10)] for start in "ab"]
    answer = post(gateway, tools=[{**CODE_TOOL, "container": {"type": "auto", "file_ids": each}} for each in files])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "At most 100 files" in answer.json()["error"]["message"]
