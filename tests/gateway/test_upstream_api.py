"""An upstream that is asked by its own `/v1/responses`: here another gateway, before a scripted server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, FUNCTION, INCLUDE, ask, code, outputs, post, stream
from tests.gateway.conftest import NewGateway

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
    inner = new_gateway({"m": [code("1 + 1", reasoning="First."), code("2", reasoning="Then."), "Two."]})
    with refusing(inner.url) as (url, refused):
        outer = new_gateway(
            {}, upstream=f"{url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
        )
        assert post(outer).json()["status"] == "completed"
    assert refused == ["reasoning"]  # once; then it is known
    assert not any("reasoning_content" in each for each in inner.upstream.requests[-1]["messages"])


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
