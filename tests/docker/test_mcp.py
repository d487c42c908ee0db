"""The MCP server as clients start it: a process on stdio, real containers, and nothing left however the client ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ImageContent, ResourceLink

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.machine.owner import same_host
from agent_tools.runtime.runtime import Runtime
from tests.mcp_door.conftest import text_of

pytestmark = pytest.mark.docker
SERVER = (sys.executable, "-m", "agent_tools", "mcp")
PATIENCE = 10.0  # seconds after the client's end
ABOUT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
SLOW = "print('began', flush=True)\nimport time\ntime.sleep(100)"

CLIENT = """
import subprocess, sys, time
server = subprocess.Popen({server!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(server.pid, flush=True)
for line in {lines!r}:
    server.stdin.write(line.encode() + b"\\n")
server.stdin.flush()
for line in server.stdout:
    sys.stdout.buffer.write(line); sys.stdout.flush()
"""


def start(*args: str) -> StdioServerParameters:
    return StdioServerParameters(command=SERVER[0], args=[*SERVER[1:], *args], env=dict(os.environ))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_conversation_over_stdio(docker_runtime: Runtime, mode: Any) -> None:
    async def main() -> None:
        async with Client(start(), mode=mode) as client:
            assert (await client.list_tools()).tools[0].name == "run_python"
            plot = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); open('a.csv', 'w').write('a')"
            drawn = await client.call_tool("run_python", {"code": plot})
            assert any(isinstance(block, ImageContent) for block in drawn.content), text_of(drawn)
            (link,) = [block for block in drawn.content if isinstance(block, ResourceLink)]
            assert (await client.read_resource(link.uri)).contents[0].text == "a"
            await client.call_tool("put_file", {"path": "d/b.txt", "content": "put"})
            code = "open('d/c.txt', 'w').write(open('d/b.txt').read()); import socket; socket.gethostbyname('pypi.org')"
            sealed = await client.call_tool("run_python", {"code": code})
            assert "gaierror" in sealed.structured_content["error"]
            listed = await client.call_tool("run_command", {"command": "whoami; ls d"})
            assert listed.structured_content["stdout"].split()[1:] == ["b.txt", "c.txt"]

    asyncio.run(main())


def test_the_network_is_what_the_command_line_lists(docker_runtime: Runtime) -> None:
    async def main() -> None:
        async with Client(start("--allow", "example.invalid")) as client:
            assert "example.invalid" in (await client.list_tools()).tools[0].description
            ran = await client.call_tool("run_command", {"command": "env | grep -c HTTPS_PROXY"})
            assert ran.structured_content["stdout"] == "1\n"

    asyncio.run(main())


def test_a_hundred_megabytes_of_output_are_a_bounded_answer(docker_runtime: Runtime) -> None:
    async def main() -> None:
        async with Client(start()) as client:
            answer = await client.call_tool("run_python", {"code": "for _ in range(100): print('x' * 2**20)"})
            assert answer.structured_content["ok"]
            assert len(answer.model_dump_json()) < 300_000

    asyncio.run(main())


@contextlib.contextmanager
def client_in_mid_call() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A client of which code runs, and the pid of its server."""
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": ABOUT}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": "run_python", "arguments": {"code": SLOW}, "_meta": {"progressToken": "p"}},
            }
        ),
    ]
    script = CLIENT.format(server=SERVER, lines=lines)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as client:
        assert client.stdout
        server = int(client.stdout.readline())
        while b"began" not in client.stdout.readline():
            assert client.poll() is None
        try:
            yield client, server
        finally:
            client.kill()


ENDS: dict[str, Callable[[subprocess.Popen[bytes], int], None]] = {
    "the client is killed": lambda client, _: client.kill(),
    "the server is told to end": lambda _, server: os.kill(server, signal.SIGTERM),
    "the server is killed": lambda _, server: os.kill(server, signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nothing_is_left_of_a_call_whose_client_or_server_ends(
    docker_engine: DockerEngine, docker_runtime: Runtime, end: Callable[[subprocess.Popen[bytes], int], None]
) -> None:
    with client_in_mid_call() as (client, server):
        assert sandboxes_of(docker_engine, server)
        end(client, server)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and (Path(f"/proc/{server}").exists() or sandboxes_of(docker_engine, server)):
            client.poll()
            time.sleep(0.05)
        assert not sandboxes_of(docker_engine, server)
        client.kill()
        client.wait()
    docker_runtime.sweep()  # the folder of a server that was killed, as every later start does


def sandboxes_of(engine: DockerEngine, pid: int) -> list[str]:
    return [
        box.id
        for box, labels in engine.strays(same_host())
        if any(value.startswith(f"{pid}-") for value in labels.values())
    ]
