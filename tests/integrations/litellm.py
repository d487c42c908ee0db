"""LiteLLM: a chat whose model asks for OpenAI's code_interpreter, which runs here."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import litellm
import pytest
from litellm.integrations.code_interpreter_interception.handler import CodeInterpreterInterceptionLogger

from agent_tools.integrations.litellm import AgentToolsSandboxConfig, _result
from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, PNG, STATE, cancelled, run_page


class Server(HTTPServer):
    """A scripted OpenAI-compatible server: it asks for code, and remembers what it was sent."""

    codes: list[str]
    requests: list[dict[str, Any]]


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        message: dict[str, Any] = {"role": "assistant", "content": "done"}
        if self.server.codes:
            name = request["tools"][0]["function"]["name"]
            arguments = json.dumps({"code": self.server.codes.pop(0)})
            call = {
                "id": f"c{len(self.server.requests)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "message": message,
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage, "choices": [choice]}
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Answer)
    server.codes, server.requests = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    litellm.callbacks = []


def base_url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


def test_any_model_runs_code_here(cfg: dict[str, Any], server: Server) -> None:
    config = AgentToolsSandboxConfig(cfg)
    interception = CodeInterpreterInterceptionLogger(enabled=True, enabled_providers=["openai"], sandbox_config=config)
    litellm.callbacks = [interception]
    server.codes = [f"{STATE}\nprint(x)", "print(x + 1)"]
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    asked = litellm.acompletion(
        model="openai/m",
        api_base=base_url(server),
        api_key="k",
        messages=[{"role": "user", "content": "go"}],
        tools=tools,
    )
    answer = asyncio.run(asked)
    assert answer.choices[0].message.content == "done"
    told = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert ["42" in told[0], "43" in told[1]] == [True, True]
    assert config.sandboxes == {}


@pytest.mark.stops
def test_results_are_theirs_and_a_cancelled_call_keeps_the_variables(cfg: dict[str, Any]) -> None:
    async def turns() -> tuple[Any, Any, Any]:
        config = AgentToolsSandboxConfig(cfg)
        container = await config.acreate_sandbox()
        first = await config.arun_code(container=container, code=f"{STATE.splitlines()[0]}\n{PICTURE}\n{FILE}\nx")
        failed = await config.arun_code(container=container.id, code="1 / 0")
        await cancelled(config.arun_code(container=container, code=ENDLESS), config.sandboxes[container.id])
        after = await config.arun_code(container=container, code=AFTER)
        assert await config.adelete_sandbox(container=container)
        assert not await config.adelete_sandbox(container=container)
        return first, failed, after

    first, failed, after = asyncio.run(turns())
    assert base64.b64decode(first.results[0]["png"]).startswith(PNG)
    assert first.results[1] == {"text": "42", "is_main_result": True}
    assert first.stdout == "2\n"
    assert failed.error["name"] == "ZeroDivisionError"
    assert after.results[0]["text"] == "43"


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told() -> None:
    told = _result(Execution((Restarted("it died"), Stream("stdout", "a"), Omitted("5 characters", is_text=True))))
    assert told.stdout == "a\n[... 5 characters left out ...]\n"
    assert "it died" in told.stderr


def test_the_page_runs() -> None:
    names = run_page("litellm")
    assert names["answer"].choices[0].message.content == "It is 42."
    assert "42" in str(names["server"].requests[-1]["messages"][-1])
