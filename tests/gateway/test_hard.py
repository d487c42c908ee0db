"""Hard cases of responses: odd characters, long code, an upstream or an engine that is not what it should be."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from agent_tools.errors import EngineUnavailable
from agent_tools.gateway.responses.history import UNKNOWN_OUTPUT
from agent_tools.gateway.store.records import StoredCall
from agent_tools.runtime.engine import Container, Engine, Guest, SandboxSpec
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.conftest import NewGateway
from tests.gateway.test_chat import ask, run
from tests.gateway.test_responses import CODE_TOOL, INCLUDE, code, outputs, post, stream


def test_01_the_clients_own_stream_reader_follows(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("6 * 7", piece=3), ScriptedReply(text="It is 42.", piece=4)]})
    with gateway.client().responses.stream(model="m", input="Go.", tools=[CODE_TOOL]) as events:  # type: ignore[list-item]
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == "It is 42."


def test_03_code_of_100_kb(new_gateway: NewGateway) -> None:
    text = "x = 'é\U0001f600\"\\\\'\r\n" * 6_000
    reply = ScriptedReply(calls=[ScriptedCall("python", json.dumps({"code": text}))], piece=97)
    events = stream(new_gateway({"m": [reply, "Ok."]}))
    deltas = [event["delta"] for event in events if event["type"].endswith("code.delta")]
    assert "".join(deltas) == text == outputs(events[-1]["response"])[0]["code"]


@pytest.mark.parametrize("text", ["print('\\ud800')", "'\\ud83d'", "print('a\\x00b')", "# \ud800\nprint(1)"])
def test_14_half_characters_and_nul_break_neither_this_turn_nor_the_next(new_gateway: NewGateway, text: str) -> None:
    call = ScriptedReply(text="\ud83d", calls=[ScriptedCall("python", json.dumps({"code": text}))], piece=1)
    gateway = new_gateway({"m": [call, "\ud83d half", "Ok."]})
    body = stream(gateway, include=INCLUDE)[-1]["response"]
    assert body["status"] == "completed"
    assert body["output"][-1]["content"][0]["text"] == "\ufffd half"
    assert post(gateway, previous_response_id=body["id"]).json()["status"] == "completed"


def test_14_a_character_whose_halves_came_apart_is_whole(new_gateway: NewGateway) -> None:
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
def test_23_calls_written_as_text(new_gateway: NewGateway, text: str, is_call: bool, is_streamed: bool) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text=text, piece=7), "It is 42."]})
    asked = {"include": INCLUDE}
    body = stream(gateway, **asked)[-1]["response"] if is_streamed else post(gateway, **asked).json()
    assert [call["outputs"] for call in outputs(body)] == [[{"type": "logs", "logs": "42\n"}]] * is_call
    assert body["output"][-1]["content"][0]["text"] == ("It is 42." if is_call else text)


def test_23_without_the_tool_a_call_is_only_text(new_gateway: NewGateway) -> None:
    text = '{"name": "python", "arguments": {"code": "print(1)"}}'
    (item,) = post(new_gateway({"m": [text]}), tools=[]).json()["output"]
    assert item["content"][0]["text"] == text


def test_a_conversation_of_10_000_items(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    calls = [
        {"type": "code_interpreter_call", "id": f"ci_{n}", "code": "1", "container_id": "cntr_gone", "outputs": None}
        for n in range(5_000)
    ]
    call = StoredCall(id="ci_4999", owner="local", created_at=1.0, told="It was one.")
    gateway.services.store.add(call)
    said = [item for call in calls for item in ({"role": "user", "content": "Go."}, call)]
    first = post(gateway, input=said)
    assert first.status_code == 200, first.text
    assert post(gateway, input="And?", previous_response_id=first.json()["id"]).status_code == 200
    asked = gateway.upstream.requests[0]["messages"]
    assert len(asked) == 1 + 3 * 5_000
    assert [message["content"] for message in asked[-4::3]] == [UNKNOWN_OUTPUT, "It was one."]


class DeadEngine(ProcessEngine):
    """An engine that starts nothing."""

    def start(self, spec: SandboxSpec) -> Container:
        raise EngineUnavailable("No engine answers.")


class SilentEngine(ProcessEngine):
    """An engine that answers nothing at all."""

    def guest(self, work_dir: Path | None = None) -> Guest:
        raise EngineUnavailable("No engine answers.")


@pytest.mark.parametrize("engine", [DeadEngine(), SilentEngine()], ids=["dead", "silent"])
def test_without_an_engine_a_response_fails_at_once_and_says_so(new_gateway: NewGateway, engine: Engine) -> None:
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": lambda _: code("1"), "chat": lambda _: run("1")}, runtime)
    events = stream(gateway, include=INCLUDE)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert (events[-3]["item"]["status"], events[-2]["code"]) == ("failed", "code_interpreter_unavailable")
    for answer in (post(gateway), ask(gateway, model="chat")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "code_interpreter_unavailable")
    assert len(gateway.upstream.requests) == 3
    assert httpx.get(f"{gateway.url}/v1/containers").status_code == 200


def test_31_an_upstream_that_breaks_off_in_a_call_leaves_it_incomplete(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: code("print(1234567)", piece=3, cut_after=8)})
    events = stream(gateway)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    (item,) = outputs(events[-1]["response"])
    assert item["status"] == "incomplete"
    assert "print(1234567)".startswith(item["code"])
    assert item["code"]


def test_31_an_upstream_that_is_not_there(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, upstream="http://127.0.0.1:9/v1")
    assert [event["type"] for event in stream(gateway)[-2:]] == ["error", "response.failed"]
    answer = post(gateway)
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
