"""AReaL: the example of an agent, as its proxy calls it: with a base URL, a key and an HTTP client."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.integrations.scenario import STATE, load_example


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "default", "choices": [choice]}


def _last_number(content: Any) -> str:
    """The last number of a tool's answer, which may come in parts."""
    return re.findall(r"\d+", json.dumps(content))[-1]


@pytest.fixture
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A model that runs code twice and then answers with what the second call printed; and what it was sent."""
    asked: list[dict[str, Any]] = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            codes = [STATE, "print(x + 1)"]
            if len(asked) <= len(codes):
                function = {"name": "code_interpreter", "arguments": json.dumps({"code": codes[len(asked) - 1]})}
                message = {"tool_calls": [{"id": str(len(asked)), "type": "function", "function": function}]}
            else:
                message = {"content": _last_number(asked[-1]["messages"][-1]["content"])}
            answer = json.dumps(_completion(message)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    server.shutdown()
    server.server_close()


def test_the_example_runs(cfg: dict[str, Any], model: tuple[str, list[dict[str, Any]]]) -> None:
    url, asked = model

    async def episode(answer: str) -> float:
        asked.clear()
        agent = load_example("areal_agent").SandboxAgent(cfg)
        data = {"messages": [{"role": "user", "content": "6 * 7 + 1"}], "answer": answer}
        async with httpx.AsyncClient() as client:
            reward: float = await agent.run(data, base_url=url, api_key="key", http_client=client)
        return reward

    assert asyncio.run(episode("43")) == 1.0
    assert asyncio.run(episode("44")) == 0.0
