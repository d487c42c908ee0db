"""Asking a gateway: requests, the models' replies, and waiting for what comes of them."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import httpx
import openai
import pytest

from agent_tools.agents.steps import Call
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_stream

CODE_TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
INCLUDE = ["code_interpreter_call.outputs"]
FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
SLEEP = "import time; print('started', flush=True); time.sleep(60)"
STOPPED = "The gateway was stopped before the response's end."
KEYS = ("first-key-123", "second-key-123")
EVENTS = "agent_tools_security_events_total"
CALL = Call("c1", "python", '{"code": "1"}')
DRAW = (
    "import base64\nfrom IPython.display import Image, display\n"
    "display(Image(data=base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=='), format='png'))"
)
EXECUTE = {
    "type": "function",
    "function": {
        "name": "execute_python",
        "description": "Executes a snippet of Python code in a secure sandbox and returns the standard output.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code to be executed."}},
            "required": ["code"],
        },
    },
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SQUARES = "print(sum(n * n for n in range(11)))"
BOUNDARY = {"Content-Type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


def code(text: str, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("python", {"code": text})], **more)


def post(gateway: Gateway, **body: Any) -> httpx.Response:
    body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL], **body}
    return httpx.post(f"{gateway.url}/v1/responses", json=body, timeout=60)


def stream(gateway: Gateway, **body: Any) -> list[dict[str, Any]]:
    answer = post(gateway, stream=True, **body)
    assert answer.status_code == 200, answer.text
    blocks = answer.text.rstrip("\n").split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    found = []
    for block in blocks[:-1]:
        if block.startswith(":"):  # the stream was silent for long
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return check_stream(found)


def outputs(body: dict[str, Any]) -> list[Any]:
    return [item for item in body["output"] if item["type"] == "code_interpreter_call"]


def until(check: Any) -> Any:
    """Ask until there is an answer; the test's own time limit bounds it."""
    pause = threading.Event()
    while not (found := check()):
        pause.wait(0.02)
    return found


def is_idle(gateway: Gateway) -> bool:
    return gateway.app.state.jobs.active == 0 and not any(gateway.services.containers.running().values())


def retrieve(gateway: Gateway, id_: str, query: str = "") -> httpx.Response:
    return httpx.get(f"{gateway.url}/v1/responses/{id_}{query}", timeout=30)


def has_ended(gateway: Gateway, id_: str) -> dict[str, Any] | None:
    body: dict[str, Any] = retrieve(gateway, id_).json()
    return body if body["status"] not in ("queued", "in_progress") else None


def events_of(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def beside(new_gateway: NewGateway, gateway: Gateway, **options: Any) -> Gateway:
    """Another gateway on the same store."""
    config = gateway.services.config
    return new_gateway({}, upstream=config.upstream, data_dir=config.data_dir, **options)


def upload(client: openai.OpenAI, size: int) -> Any:
    return client.files.create(file=("a.bin", io.BytesIO(b"a" * size)), purpose="user_data")


def refused(use: Any) -> tuple[int, str, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        use()
    return caught.value.status_code, str(caught.value.code), caught.value.message


def nearly_full(gateway: Gateway, *, left: int = 0) -> None:
    gateway.services.shares.free = lambda _: gateway.services.config.min_disk_free + left


def in_container(id_: str) -> list[dict[str, Any]]:
    return [{"type": "code_interpreter", "container": id_}]


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def run(script: str, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("execute_python", {"code": script})], **more)


def ask(gateway: Gateway, **body: Any) -> httpx.Response:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": [EXECUTE], **body}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=asked, timeout=60)


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    blocks = answer.text.strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def shell(**environment: Any) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", **environment}}


def commands(*given: str, limits: dict[str, Any] | None = None, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("shell", {"commands": list(given), **(limits or {})})], **more)
