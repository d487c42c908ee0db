"""MCP over HTTP: a server of its own, with keys and without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from agent_tools.bodies.bounded_app import MAX_PARTS
from agent_tools.errors import InvalidParams
from agent_tools.mcp.asgi_app import MAX_CONNECTIONS, MAX_SESSIONS, create_app, server_config
from agent_tools.mcp.config import McpConfig
from agent_tools.runtime.runtime import Runtime
from tests.gateway.asking import until
from tests.gateway.requests.test_auth import FOREIGN
from tests.identity_provider import AUDIENCE, IdentityProvider
from tests.mcp_door.conftest import FOREVER, text_of
from tests.mcp_door.test_tasks import Tasks, ask, begun, ended
from tests.recorder import connect, read_all

KEYS = ("first-key-123", "second-key-123")
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": ABOUT}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture
def new_server(process_runtime: Runtime) -> Iterator[Callable[..., str]]:
    """Starts servers on ports of this machine; returns their URLs."""
    with contextlib.ExitStack() as stack:

        def make(
            log_level: str = "warning",
            max_sessions: int = MAX_SESSIONS,
            max_connections: int = MAX_CONNECTIONS,
            **settings: Any,
        ) -> str:
            app = create_app(McpConfig(**settings), process_runtime, lambda told: None, max_sessions)
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = uvicorn.Server(server_config(app, max_connections, log_level=log_level, lifespan="on"))
            server.config.timeout_graceful_shutdown = 1
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            while not server.started and thread.is_alive():
                thread.join(0.01)
            assert server.started
            return f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"

        yield make


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.parametrize(("level", "shows_requests"), [("info", True), ("warning", False)])
def test_a_server_logs_from_its_level_on_and_stops_beside_an_open_stream(level: str, shows_requests: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, command = f"http://127.0.0.1:{port}/mcp", [sys.executable, "-m", "agent_tools", "mcp", "--log-level", level]
    command += ["--http", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        until(lambda: server.poll() is not None or listens(port))
        with httpx.Client(headers=HEADERS) as client:
            session = {"Mcp-Session-Id": client.post(url, json=HELLO).headers["mcp-session-id"]}
            with client.stream("GET", url, headers=session) as listening:
                assert listening.status_code == 200
                server.terminate()
                assert server.stdout
                log = server.stdout.read()
    assert server.returncode == -signal.SIGTERM
    assert ("POST /mcp" in log) is shows_requests


@contextlib.asynccontextmanager
async def connected(url: str, key: str = "", mode: Any = "auto", **options: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_state_goes_by_the_handle_and_not_by_the_connection(new_server: Callable[..., str], mode: str) -> None:
    async def main(url: str) -> None:
        async with connected(url, mode=mode) as client:
            container = (await client.call_tool("run_python", {"code": "x = 20"})).structured_content["container"]
        async with connected(url, mode=mode) as client:
            answer = await client.call_tool("run_python", {"code": "x + 1", "container": container})
            assert answer.structured_content["result"] == "21"
            await client.call_tool("close", {"container": container})

    asyncio.run(main(new_server()))


def test_keys_are_needed_and_see_only_what_is_theirs(new_server: Callable[..., str]) -> None:
    url = new_server(api_keys=KEYS)
    for headers in ({}, {"Authorization": "Bearer wrong-key-123"}):
        refused = httpx.post(url, json=LIST, headers={**HEADERS, **headers})
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"

    async def main() -> None:
        async with connected(url, KEYS[0]) as mine, connected(url, KEYS[1]) as theirs:
            put = (await mine.call_tool("put_file", {"path": "a", "content": "mine"})).structured_content
            for tool, more in (
                ("run_python", {"code": "1"}),
                ("run_command", {"command": "ls"}),
                ("put_file", {"path": "b", "content": ""}),
                ("get_file", {"path": "a"}),
                *((name, {}) for name in ("wait", "list_files", "restart", "close")),
            ):
                answer = await theirs.call_tool(tool, {"container": put["container"], **more})
                assert "No container found" in text_of(answer), tool
            with pytest.raises(MCPError):
                await theirs.read_resource(put["file"]["uri"])
            assert (await mine.read_resource(put["file"]["uri"])).contents[0].text == "mine"

    asyncio.run(main())


def test_one_key_leaves_room_for_another(new_server: Callable[..., str]) -> None:
    url = new_server(api_keys=KEYS, max_sandboxes=2, answer_within=0.3)

    async def main() -> None:
        async with connected(url, KEYS[0]) as mine, connected(url, KEYS[1]) as theirs:
            running = (await mine.call_tool("run_python", {"code": FOREVER})).structured_content
            waiting = await mine.call_tool("run_python", {"code": "1"})
            assert "waiting for a sandbox" in text_of(waiting)
            beside = await mine.call_tool("run_command", {"command": "true", "container": running["container"]})
            assert not beside.is_error
            other = await theirs.call_tool("run_python", {"code": "40 + 2"})
            while other.structured_content["status"] == "running":
                other = await theirs.call_tool("wait", {"container": other.structured_content["container"]})
            assert other.structured_content["result"] == "42"
            for each in (waiting.structured_content, running):
                await mine.call_tool("close", {"container": each["container"]})

    asyncio.run(main())


def test_users_of_an_identity_provider_see_only_what_is_theirs(new_server: Callable[..., str]) -> None:
    with IdentityProvider() as provider:
        url = new_server(**provider.settings, api_keys=KEYS)
        ann, bob = provider.token("ann"), provider.token("bob", aud=f"{AUDIENCE}/mcp")
        container = asyncio.run(run_in(url, ann, code="x = 6"))
        assert asyncio.run(run_in(url, ann, code="print(x * 7)", container=container)) == container
        for token in (bob, KEYS[0]):
            assert "No container found" in asyncio.run(run_in(url, token, code="x", container=container))
        for key, says in (
            ("", ""),
            (provider.token(aud="other"), 'error="invalid_token", '),
            ("a.b.c", 'error="invalid_token", '),
        ):
            refused = httpx.post(url, json=LIST, headers={"Authorization": f"Bearer {key}"} if key else {})
            where = f'resource_metadata="{AUDIENCE}/.well-known/oauth-protected-resource/mcp"'
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, f"Bearer {says}{where}")
        about = httpx.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")).json()
        assert about["authorization_servers"] == [provider.issuer]
        provider.is_down = True
        alone = new_server(**provider.settings)
        assert httpx.post(alone, json=LIST, headers={"Authorization": f"Bearer {ann}"}).status_code == 503
        assert httpx.post(alone, json=LIST, headers={"Authorization": "Bearer a-key"}).status_code == 401


async def run_in(url: str, key: str, **arguments: str) -> str:
    """Run code in a container; return its handle, or the failure."""
    async with connected(url, key) as client:
        answer = await client.call_tool("run_python", arguments)
        return text_of(answer) if answer.is_error else text_of(answer).split()[1]


def test_a_session_of_an_older_protocol_is_its_keys_own(new_server: Callable[..., str]) -> None:
    url = new_server(api_keys=KEYS)
    mine, theirs = ({**HEADERS, "Authorization": f"Bearer {key}"} for key in KEYS)
    session = httpx.post(url, json=HELLO, headers=mine).headers["mcp-session-id"]
    assert httpx.post(url, json=LIST, headers={**theirs, "mcp-session-id": session}).status_code == 404
    assert httpx.post(url, json=LIST, headers={**mine, "mcp-session-id": session}).status_code == 200


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_web_page_reaches_no_server_without_keys(new_server: Callable[..., str], headers: dict[str, str]) -> None:
    assert httpx.post(new_server(), json=LIST, headers={**HEADERS, **headers}).status_code == 403


def test_programs_of_this_machine_reach_a_server_without_keys(new_server: Callable[..., str]) -> None:
    url = new_server()
    port = httpx.URL(url).port
    for headers in (
        *({}, {"Host": "localhost"}, {"Host": f"LOCALHOST:{port}"}, {"Host": f"[::1]:{port}"}),
        *({"Origin": f"http://127.0.0.1:{port}"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}),
    ):
        assert httpx.post(url, json=HELLO, headers={**HEADERS, **headers}).status_code == 200, headers


@pytest.mark.parametrize("content", ["[" * (MAX_PARTS + 1), json.dumps(LIST) + " " * 600_000], ids=["parts", "bytes"])
def test_a_request_that_costs_too_much_is_refused_before_it_is_parsed(
    new_server: Callable[..., str], content: str
) -> None:
    url = new_server(max_body_bytes=600_000)
    refused = httpx.post(url, content=content, headers=HEADERS)
    assert refused.status_code == 413
    assert "600,000 bytes" in refused.text or "commas" in refused.text


def test_without_a_key_only_this_machine_is_listened_to() -> None:
    with pytest.raises(InvalidParams, match="give --api-key"):
        McpConfig(host="0.0.0.0")
    with pytest.raises(InvalidParams, match="fewer than 8 characters"):
        McpConfig(api_keys="short")


def test_a_client_that_hangs_up_ends_its_code(new_server: Callable[..., str]) -> None:
    async def main(url: str) -> None:
        async with connected(url) as client:
            container = (await client.call_tool("run_python", {"code": "kept = 7"})).structured_content["container"]
        began = asyncio.Event()

        async def hear(_: float, __: float | None, message: str | None) -> None:
            began.set()

        async with connected(url) as gone:
            arguments = {"code": f"print(1, flush=True)\n{FOREVER}", "container": container}
            call = asyncio.create_task(gone.call_tool("run_python", arguments, progress_callback=hear))
            await began.wait()
            call.cancel()
            await asyncio.wait([call])
        async with connected(url) as client:
            answer = await client.call_tool("run_python", {"code": "kept", "container": container})
            assert answer.structured_content["result"] == "7"

    asyncio.run(main(new_server()))


def test_sessions_of_older_protocols_are_bounded(new_server: Callable[..., str]) -> None:
    url = new_server(max_sessions=1)
    answers = [httpx.post(url, json=HELLO, headers=HEADERS).status_code for _ in range(2)]
    assert answers == [200, 503]


def test_sessions_of_one_key_leave_room_for_another(new_server: Callable[..., str]) -> None:
    url = new_server(max_sessions=2, api_keys=KEYS)
    keys = (KEYS[0], KEYS[0], KEYS[1])
    sent = [httpx.post(url, json=HELLO, headers={**HEADERS, "Authorization": f"Bearer {key}"}) for key in keys]
    assert [answer.status_code for answer in sent] == [200, 503, 200]


def test_a_task_is_seen_and_ended_by_its_key_alone(new_server: Callable[..., str]) -> None:
    url = new_server(api_keys=KEYS, answer_within=0.3)
    tasks, others = Tasks(), Tasks()

    async def main() -> None:
        async with (
            connected(url, KEYS[0], extensions=(tasks,)) as mine,
            connected(url, KEYS[1], extensions=(others,)) as theirs,
        ):
            task = await begun(mine, tasks, "print('begun', flush=True)\n" + FOREVER)
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError, match="There is no such task"):
                    await ask(theirs, method, task)
            assert (await ask(mine, "get", task))["status"] == "working"
            await ask(mine, "cancel", task)
            assert (await ended(mine, task))["status"] == "cancelled"
            with pytest.raises(MCPError, match="There is no such task"):
                await ask(theirs, "get", task)

    asyncio.run(main())


def test_connections_that_ask_for_nothing_make_room_for_others(new_server: Callable[..., str]) -> None:
    url = new_server(api_keys=KEYS, max_connections=10)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connect(url)) for _ in range(40)]
        answer = httpx.post(url, json=HELLO, headers={**HEADERS, "Authorization": f"Bearer {KEYS[0]}"})
        assert answer.status_code == 200
        assert read_all(crowd[0]) in (b"", b"(reset)")
