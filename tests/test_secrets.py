"""No door writes a secret that it was given into a log, at any level: each is driven rightly and wrongly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import AgentToolsError
from agent_tools.gateway.config import read_config
from agent_tools.mcp.config import McpConfig
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL, code
from tests.gateway.conftest import New, NewGateway, new, new_gateway, process_runtime
from tests.mcp_door.test_http import HEADERS, HELLO, LIST, connected, new_server
from tests.recorder import Answer
from tests.unit.runtime.egress.conftest import Keep, OpenNetwork, keep, open_network
from tests.unit.runtime.egress.network import NAME, Hop, Server, certificate

__all__ = ["keep", "new", "new_gateway", "new_server", "open_network", "process_runtime"]

KEYS = ("canary-first-key", "canary-second-key")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """All that is logged or written to the terminal; no secret is in it at the end."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("uvicorn.access").filters.clear()  # which an earlier door of this process has set
    written: list[str] = []

    def seen() -> str:
        written.extend(capfd.readouterr())
        records = [f"{each.getMessage()} {each.exc_info} {each.exc_text}" for each in caplog.records]
        return "\n".join(written + records)

    yield seen
    logged = [line for line in seen().splitlines() if "canary" in line]
    assert logged == []


def test_the_gateway_logs_no_key(new_gateway: NewGateway, logs: Callable[[], str]) -> None:
    gateway = new_gateway(
        {"m": [code("1"), "Ok.", ScriptedReply(status=401), ScriptedReply(cut_after=1)], "chat": ["Ok."] * 2},
        log_level="debug",
        api_keys=KEYS,
        upstream_key="canary-upstream",
    )
    turn = {"model": "m", "input": "Hi.", "tools": [CODE_TOOL]}
    chat = {"model": "chat", "messages": [{"role": "user", "content": "Hi."}]}
    for key in (*KEYS, "canary-wrong"):
        for path, body in (("responses", turn), ("responses", turn), ("chat/completions", chat)):
            httpx.post(f"{gateway.url}/v1/{path}", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    with httpx.Client(base_url=gateway.url) as client:
        for headers in (
            *({"Authorization": f"Bearer {KEYS[0]}"}, {"Authorization": f"Basic {KEYS[0]}"}, {"api-key": KEYS[1]}),
            *({"X-Agent-Tools-Forwarded": "canary-wrong"}, {"X-Agent-Tools-Forwarded": "canary-of-all"}),
        ):
            for path in ("/v1/models", "/v1/nothing", f"/v1/models?api_key={KEYS[0]}", f"/?key={KEYS[0]}"):
                client.get(path, headers=headers)
                client.post(path, headers=headers, content=b"{")
    assert "/v1/models" in logs()
    assert gateway.upstream.headers[0]["authorization"] == "Bearer canary-upstream"


def test_mcp_logs_no_key(new_server: Callable[..., str], logs: Callable[[], str]) -> None:
    url = new_server("debug", api_keys=KEYS)

    async def main() -> None:
        async with connected(url, KEYS[0]) as client:
            await client.call_tool("run_python", {"code": "1"})
            await client.call_tool("run_python", {"code": 5})

    asyncio.run(main())
    for key in (KEYS[0], "canary-wrong"):
        for message in (HELLO, LIST):
            httpx.post(f"{url}?key={key}", json=message, headers={**HEADERS, "Authorization": f"Bearer {key}"})
        httpx.get(f"{url}/nothing?key={key}", headers={"api-key": key})
    assert "/mcp" in logs()


def test_a_network_logs_no_header(
    keep: Keep,
    open_network: OpenNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logs: Callable[[], str],
) -> None:
    context, bundle = certificate(tmp_path)
    monkeypatch.setenv("PIP_CERT", str(bundle))
    for answer in (ANSWER, b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", b"canary is no HTTP"):
        hop = keep(Hop(keep(Server(answer, context, takes=lambda got: got.endswith(b"\r\n\r\n")))))
        network = open_network([NAME], hop=hop, headers={NAME: {"Authorization": "Bearer canary-header"}})
        for request in (f"GET http://{NAME}/?key=canary-query", f"CONNECT {NAME}:80", "GET http://canary:x@a.org/"):
            network.say(f"{request} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
        assert len(network.taken(3)) == 3
    assert NAME in logs()


@pytest.mark.parametrize("path", ["responses", "chat/completions", "embeddings", "models"])
@pytest.mark.parametrize("status", [401, 403])
def test_an_upstream_that_repeats_the_gateways_key_is_not_quoted(new: New, path: str, status: int) -> None:
    gateway, upstream = new()
    upstream.answer = lambda seen: Answer(b'{"error": {"message": "No: operators-key"}}', status=status)
    body = {"model": "m", "input": "Hi.", "messages": [{"role": "user", "content": "Hi."}]}
    answer = httpx.request("GET" if path == "models" else "POST", f"{gateway.url}/v1/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unauthorized")
    assert upstream.seen[0].headers["authorization"] == "Bearer operators-key"
    assert "operators-key" not in answer.text


@pytest.mark.docker
@pytest.mark.parametrize("command", [("chat", "--once", "Hi."), ("chat", "--react", "--once", "Hi.")], ids=" ".join)
@pytest.mark.parametrize("status", [401, 500])
def test_chat_shows_no_key(command: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ScriptedReply(status=status)
    with ScriptedServer({"m": lambda _: refused}, "canary-model-key") as server:
        monkeypatch.setenv("HOST_KEY", "canary-wrong" if status == 401 else "canary-model-key")
        options = ("--model", "m", "--base-url", server.base_url, "--api-key-env", "HOST_KEY")
        answer = CliRunner().invoke(cli, [*command, *options])
    assert answer.exit_code != 0
    assert "canary" not in answer.output + repr(answer.exception)


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_config({"upstream": "http://a/v1", "api_keys": "canary"}),
        lambda: read_config({"upstream": "http://a/v1", "upstream_key": ["canary-key"]}),
        lambda: read_config({"upstream": "http://me:canary@a/v1"}),
        lambda: McpConfig(api_keys="canary"),
        lambda: McpConfig(api_keys={"canary-key": 1}),
        lambda: NetworkPolicy.read({"allow": ["a.org"], "headers": {"a.org": {"Authorization": "canary\nx"}}}),
        lambda: NetworkPolicy.read({"allow": ["a.org"], "headers": {"a.org": {"Authorization": ["canary"]}}}),
        lambda: NetworkPolicy.read({"allow": ["a.org"], "headers": {"a.org": "canary"}}),
        lambda: NetworkPolicy.read({"allow": ["a.org"], "headers": {"b.org": {"Authorization": "canary"}}}),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_without_its_secret(read: Callable[[], object]) -> None:
    with pytest.raises(AgentToolsError) as refused:
        read()
    assert "canary" not in str(refused.value)


def test_no_setting_shows_its_secret() -> None:
    config = read_config(
        {
            "upstream": "http://a/v1",
            "upstream_key": "canary-key",
            "api_keys": "canary-client",
            "database": "postgresql://me:canary@a/b",
        }
    )
    policy = NetworkPolicy.read({"allow": ["a.org"], "headers": {"a.org": {"Authorization": "canary"}}})
    assert "canary" not in repr(config) + repr(McpConfig(api_keys="canary-key")) + repr(policy)
