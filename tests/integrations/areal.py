"""AReaL: the example of an agent, by AReaL's own workflow in both of its modes, and a proxy with a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from areal.experimental.openai.proxy import workflow as workflows

from tests.integrations.left_behind import await_gone
from tests.integrations.scenario import ENDLESS, STATE, Death, load_example


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "default", "choices": [choice]}


def _last_number(content: Any) -> str:
    """The last number of a tool's answer, which may come in parts."""
    return re.findall(r"\d+", json.dumps(content))[-1]


SESSION_KEY = "key-of-the-session"
ADMIN = ("grant_capacity", "rl/start_session", "export_trajectories")
"""Paths that AReaL's workflow calls with the key of its own; all others are called with that of the session."""


@dataclass
class Proxy:
    """AReaL's proxy as an agent and the workflow see it: one session, rewards, and the model, which is scripted."""

    url: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Paths, and the keys that were given."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    codes: tuple[str, ...] = (STATE, "print(x + 1)")
    """What the model has run, before it answers with what was printed last."""

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "chat/completions":
                self.asked.append(body)
                return _completion(self._message())
            case "rl/start_session":
                return {"session_id": "1", "api_key": SESSION_KEY}
            case "rl/set_reward":
                self.rewards.append(body["reward"])
            case "export_trajectories":
                return {"interactions": {}}
        return {}

    def _message(self) -> dict[str, Any]:
        if len(self.asked) > len(self.codes):
            return {"content": _last_number(self.asked[-1]["messages"][-1]["content"])}
        function = {"name": "code_interpreter", "arguments": json.dumps({"code": self.codes[len(self.asked) - 1]})}
        return {"tool_calls": [{"id": str(len(self.asked)), "type": "function", "function": function}]}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or "{}")
            path = self.path.strip("/")
            proxy.calls.append((path, self.headers["authorization"].removeprefix("Bearer ")))
            answer = json.dumps(proxy.answer(path, body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield proxy
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("mode", ["inline", "subproc"])
@pytest.mark.parametrize(("answer", "reward"), [("43", 1.0), ("44", 0.0)])
def test_the_example_earns_its_reward_in_areals_workflow(
    cfg: dict[str, Any], proxy: Proxy, monkeypatch: pytest.MonkeyPatch, mode: str, answer: str, reward: float
) -> None:
    example = load_example("areal_agent")
    monkeypatch.setitem(sys.modules, "areal_agent", example)  # where AReaL's processes find the agent's class
    workflow = workflows.OpenAIProxyWorkflow(mode=mode, agent=example.SandboxAgent(cfg), proxy_addr=proxy.url)
    data = {"messages": [{"role": "user", "content": "6 * 7 + 1"}], "answer": answer}
    try:
        assert asyncio.run(workflow.arun_episode(None, data)) == {}
    finally:
        if workflows._executor:
            workflows._executor.shutdown(wait=True)
            workflows._executor = None
    assert proxy.rewards == [reward]
    assert len(proxy.asked) == 3
    assert {key for path, key in proxy.calls if path not in ADMIN} == {SESSION_KEY}
    assert [path for path, _ in proxy.calls if path != "chat/completions"] == [
        *ADMIN[:2],
        "rl/set_reward",
        "rl/end_session",
        ADMIN[2],
    ]


@pytest.mark.stops
def test_an_episode_that_is_cancelled_leaves_nothing(cfg: dict[str, Any], proxy: Proxy, tmp_path: Path) -> None:
    proxy.codes = (ENDLESS,)
    agent = load_example("areal_agent").SandboxAgent({**cfg, "work_dir": str(tmp_path)})
    workflow = workflows.OpenAIProxyWorkflow(mode="inline", agent=agent, proxy_addr=proxy.url)
    data = {"messages": [{"role": "user", "content": "6 * 7 + 1"}], "answer": "43"}

    async def cancelled() -> None:
        episode = asyncio.ensure_future(workflow.arun_episode(None, data))
        while not (tmp_path / "started").exists():
            await asyncio.sleep(0.05)
        Death.come()
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(cancelled())
    assert proxy.rewards == []
    await_gone(os.getpid())
