"""An upstream that is asked by its own `/v1/responses`: here another gateway, before a scripted server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, EXECUTE, FUNCTION, INCLUDE, ask, code, outputs, post, stream
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.response_dialects import event, message_item
from tests.recorder import Answer, Recorder, Seen, events

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_code_runs_before_an_upstream_that_speaks_responses(new_gateway: NewGateway) -> None:
    inner = new_gateway(
        {"m": [code("x = 6; x", piece=3, usage=Usage(10, 2, 1)), ScriptedReply(text="Six.", reasoning="Hm.", piece=2)]}
    )
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    body = stream(outer, include=INCLUDE, instructions="Be brief.", temperature=0.5)[-1]["response"]
    assert outputs(body)[0]["outputs"] == [{"type": "logs", "logs": "6"}]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "reasoning", "message"]
    assert body["output"][2]["content"][0]["text"] == "Six."
    assert body["usage"]["total_tokens"] == 12 + 15
    first, second = inner.upstream.requests
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert first["temperature"] == 0.5
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert inner.services.containers.all_of("local") == []


def test_functions_choices_and_failures_pass_both_ways(new_gateway: NewGateway) -> None:
    both = [ScriptedCall("python", {"code": "1"}, "a"), ScriptedCall("weather", {"city": "Ulm"}, "b")]
    inner = new_gateway(
        {"m": [ScriptedReply(calls=both)], "bad": lambda _: ScriptedReply(status=400, error="too long")}
    )
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    choice = {"type": "function", "name": "weather"}
    body = stream(outer, tools=[CODE_TOOL, FUNCTION], tool_choice=choice)[-1]["response"]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "function_call"]
    assert inner.upstream.requests[0]["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    answer = post(outer, model="bad")
    assert answer.status_code >= 400
    assert "too long" in answer.json()["error"]["message"]


def test_what_chat_completions_may_hold_reaches_such_an_upstream(new_gateway: NewGateway) -> None:
    inner = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    call = {"name": "f", "arguments": "{}"}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "7"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]},
    ]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "execute_python"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = ask(outer, messages=messages, max_completion_tokens=55, tool_choice=choice)
    assert answer.status_code == 200, answer.text
    sent = inner.upstream.requests[-1]
    assert sent["max_tokens"] == 55
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool", "user"]
    assert sent["messages"][-1]["content"][0]["image_url"] == {"url": PIXEL, "detail": "low"}


def test_the_models_reasoning_is_sent_back(new_gateway: NewGateway) -> None:
    inner = new_gateway({"m": [code("1 + 1", reasoning="First."), ScriptedReply("Two.", reasoning="Then."), "Ok."]})
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    first = post(outer, reasoning={"summary": "auto"}).json()
    assert [each["summary"][0]["text"] for each in first["output"] if each["type"] == "reasoning"] == [
        "First.",
        "Then.",
    ]
    post(outer, previous_response_id=first["id"])
    thoughts = [message.get("reasoning_content") for message in inner.upstream.requests[-1]["messages"]]
    assert thoughts == [None, "First.", None, "Then.", None]


def test_an_upstream_that_refuses_reasoning_gets_none(new_gateway: NewGateway) -> None:
    thoughts = ("First.", "Then.", "Last.")
    inner = new_gateway({"m": [*(code("1 + 1", reasoning=each) for each in thoughts), "Two."]})
    with refusing(inner.url) as (url, refused):
        outer = new_gateway(
            {}, upstream=f"{url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
        )
        assert post(outer).json()["status"] == "completed"
    assert refused == ["reasoning"] * 2  # encrypted, and as text; then it is known
    assert not any("reasoning_content" in each for each in inner.upstream.requests[-1]["messages"])


class Encrypting:
    """A server whose model reasons before each call and answer, and encrypts that; with OpenAI's refusals.

    `sent` are the requests that it took, `refused` the words of its refusals.
    """

    def __init__(self, rounds: int, *, can_encrypt: bool = True, key: str = "gAAAA") -> None:
        self.rounds = rounds
        self.can_encrypt = can_encrypt
        self.key = key
        self.sent: list[dict[str, Any]] = []
        self.refused: list[str] = []

    def answer(self, seen: Seen) -> Answer:
        asked = seen.json
        if problem := self._problem(asked):
            self.refused.append(problem)
            error = {"message": problem, "type": "invalid_request_error", "param": None, "code": None}
            return Answer(json.dumps({"error": error}).encode(), status=400)
        self.sent.append(asked)
        number = len(self.sent)
        call = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "status": "completed"}
        call = {**call, "name": asked["tools"][-1]["name"], "arguments": json.dumps({"code": "1 + 1"})}
        made = message_item("Two.") if number % self.rounds == 0 else call
        output = [self.thought(number), made] if asked.get("include") else [made]
        done = [event("output_item.done", output_index=n, item=item) for n, item in enumerate(output)]
        added = [event("output_item.added", output_index=n, item=item) for n, item in enumerate(output)]
        end = event("completed", response={"status": "completed", "output": output})
        return events(*(each for pair in zip(added, done) for each in pair), end)

    def thought(self, number: int) -> dict[str, Any]:
        content = f"{self.key}{number}"
        return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "encrypted_content": content, "of": "o"}

    def _problem(self, asked: dict[str, Any]) -> str:
        thoughts = [item for item in asked["input"] if item["type"] == "reasoning"]
        if asked.get("include") and not self.can_encrypt:
            return "Encrypted content is not supported with this model."
        if any(not str(item.get("encrypted_content")).startswith(self.key) for item in thoughts):
            return "The encrypted content gAAA... could not be verified. Reason: it could not be decrypted."
        return ""


@contextmanager
def encrypting(new_gateway: NewGateway, server: Encrypting) -> Iterator[Gateway]:
    with Recorder(server.answer) as upstream:
        yield new_gateway({}, upstream=upstream.base_url, upstream_api="responses")


@pytest.mark.parametrize("by", ["previous_response_id", "conversation", "input"])
def test_encrypted_reasoning_goes_back_word_for_word(new_gateway: NewGateway, by: str) -> None:
    server = Encrypting(3)
    with encrypting(new_gateway, server) as gateway:
        named = {by: gateway.client().conversations.create().id} if by == "conversation" else {}
        first = post(gateway, **named).json()
        more = {by: first["id"]} if by == "previous_response_id" else named
        before = [{"role": "user", "content": "Go."}, *first["output"]] if by == "input" else []
        second = post(gateway, input=[*before, {"role": "user", "content": "Again."}], **more).json()
    assert server.refused == []
    assert all(sent["include"] == ["reasoning.encrypted_content"] and not sent["store"] for sent in server.sent)
    kinds = [item["type"] for item in server.sent[-1]["input"]]
    called = ["reasoning", "function_call", "function_call_output"]
    assert kinds == ["message", *called, *called, "reasoning", "message", "message", *called, *called]
    thoughts = [item for item in server.sent[-1]["input"] if item["type"] == "reasoning"]
    assert thoughts == [server.thought(number) for number in range(1, 6)]
    assert "gAAAA" not in json.dumps([first, second])  # nobody asked for it


def test_clients_of_chat_completions_get_no_encrypted_reasoning(new_gateway: NewGateway) -> None:
    server = Encrypting(2)
    with encrypting(new_gateway, server) as gateway:
        answers = [ask(gateway).text, ask(gateway, stream=True).text]
        function = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        answers.append(ask(gateway, tools=[EXECUTE, function]).text)
    assert [item["type"] for item in server.sent[1]["input"]][1] == "reasoning"
    assert "call_5" in answers[-1]
    assert "gAAAA" not in str(answers)


def test_a_server_that_encrypts_nothing_is_asked_once(new_gateway: NewGateway) -> None:
    server = Encrypting(2, can_encrypt=False)
    with encrypting(new_gateway, server) as gateway:
        bodies = [post(gateway).json(), post(gateway).json()]
    assert [body["status"] for body in bodies] == ["completed"] * 2
    assert server.refused == ["Encrypted content is not supported with this model."]
    assert not any("include" in sent for sent in server.sent)


def test_reasoning_of_another_key_is_left_out_of_its_conversation_only(new_gateway: NewGateway) -> None:
    server = Encrypting(2)
    with encrypting(new_gateway, server) as gateway:
        first = post(gateway).json()
        server.key = "gBBBB"
        assert post(gateway, previous_response_id=first["id"]).json()["status"] == "completed"
        post(gateway)
    assert len(server.refused) == 2  # in each round of that conversation
    assert [sent["include"] for sent in server.sent] == [["reasoning.encrypted_content"]] * 6
    assert server.sent[-1]["input"][1] == server.thought(5)


@contextmanager
def refusing(url: str) -> Iterator[tuple[str, list[str]]]:
    """A server before another one that refuses items of reasoning, and notes that it did."""
    refused: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if any(item["type"] == "reasoning" for item in json.loads(body)["input"]):
                refused.append("reasoning")
                self.answer(400, b'{"error": {"message": "Item of type reasoning without its encrypted content."}}')
            else:
                with httpx.stream("POST", f"{url}{self.path}", content=body, timeout=30) as answer:
                    self.answer(answer.status_code, answer.read())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if status == 200 else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", refused
        server.shutdown()
        thread.join()
