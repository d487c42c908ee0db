"""What each door adds to a warm call, as ratios to the direct call in the same run.

    .venv/bin/python benchmarks/doors.py [--rounds 40]

The same `1 + 1` is run in turn, ten calls in a row, in sandboxes of the same kind: directly by `Sandbox.run_code`,
through the MCP server on stdio, and through it over HTTP, each by a plain client, which writes and reads the protocol's
bytes and no more, and by the real client library in this process. So the rows of the plain client are what the server
and the wire add, and what is beyond is the library's. `list_resources` is shown beside them: it is the protocol alone,
without any code. `adds` is the difference to the direct call in time, `on CPU` what client and server computed for a
call: on a machine with other work the first grows, and the second does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from mcp import Client, StdioServerParameters

from agent_tools import Sandbox

CODE = "1 + 1"
SERVER = ("-m", "agent_tools", "mcp")
IN_A_ROW = 10  # calls: a warm call is one after another
VERSION = "2026-07-28"
META = {
    f"io.modelcontextprotocol/{name}": value
    for name, value in {
        "protocolVersion": VERSION,
        "clientInfo": {"name": "plain", "version": "1"},
        "clientCapabilities": {},
    }.items()
}
Ask = Callable[[], Awaitable[object]]
Times = dict[str, tuple[list[float], float]]
"""Milliseconds of each call, and of the CPU for one, by door."""


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """A server over HTTP, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *SERVER, "--http", address], **quiet) as process:  # noqa: ASYNC220
        while process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://{address}/mcp")  # noqa: ASYNC210  (nothing else runs yet)
                break
            await asyncio.sleep(0.05)
        try:
            yield f"http://{address}/mcp"
        finally:
            process.terminate()


class Plain:
    """A client of one connection that knows no more of the protocol than a call of `run_python`, and blocks."""

    def __init__(self, exchange: Callable[[bytes], bytes]) -> None:
        self._exchange = exchange
        self._container = ""
        self._container = self._call()["container"]

    async def call(self) -> None:
        """Run the code."""
        assert self._call()["result"] == "2"

    def _call(self) -> dict[str, Any]:
        given = {"code": CODE, **({"container": self._container} if self._container else {})}
        params = {"name": "run_python", "arguments": given, "_meta": META}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = json.loads(self._exchange(json.dumps(asked).encode()))
        structure: dict[str, Any] = answer["result"]["structuredContent"]
        return structure


@contextlib.contextmanager
def plain_stdio() -> Iterator[Plain]:
    """A plain client on the pipes of a server of its own."""
    with subprocess.Popen(
        [sys.executable, *SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as server:
        assert server.stdin
        assert server.stdout
        answers = os.fdopen(os.dup(server.stdout.fileno()), "rb")

        def exchange(asked: bytes) -> bytes:
            server.stdin.write(asked + b"\n")
            return answers.readline()

        yield Plain(exchange)
        server.stdin.close()


def plain_http(url: str) -> Plain:
    """A plain client on one connection that is kept."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    heads = {**accepted, "mcp-protocol-version": VERSION, "mcp-method": "tools/call", "mcp-name": "run_python"}

    def exchange(asked: bytes) -> bytes:
        try:
            connection.request("POST", "/mcp", asked, heads)
            return connection.getresponse().read()
        except (
            BrokenPipeError,
            ConnectionResetError,
        ):  # the server closes a connection that was idle for seconds, on a busy machine
            connection.close()
            return exchange(asked)

    return Plain(exchange)


async def call_of(client: Client) -> Ask:
    """Return what runs the code in one container of a client's own."""
    container = (await client.call_tool("run_python", {"code": CODE})).structured_content["container"]

    async def call() -> None:
        answer = await client.call_tool("run_python", {"code": CODE, "container": container})
        assert answer.structured_content["result"] == "2"

    return call


async def measure(rounds: int) -> Times:
    """Return what each door took, asked in turn."""
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox())
        async with (
            Client(StdioServerParameters(command=sys.executable, args=list(SERVER))) as stdio,
            http_server() as url,
            Client(url) as over_http,
        ):
            plain = stack.enter_context(plain_stdio())

            async def direct() -> None:
                assert sandbox.run_code(CODE).value == 2

            asked: dict[str, Ask] = {
                "direct": direct,
                "MCP, stdio, plain client": plain.call,
                "MCP, HTTP, plain client": plain_http(url).call,
                "MCP, stdio": await call_of(stdio),
                "MCP, HTTP": await call_of(over_http),
                "MCP, stdio, list_resources": stdio.list_resources,
                "MCP, HTTP, list_resources": over_http.list_resources,
            }
            found: dict[str, list[float]] = {name: [] for name in asked}
            for _ in range(rounds):
                for name, ask in asked.items():
                    for _ in range(IN_A_ROW):
                        began = time.perf_counter()
                        await ask()
                        found[name].append(1000 * (time.perf_counter() - began))
            return {name: (times, await computed(asked[name], rounds)) for name, times in found.items()}


async def computed(ask: Ask, rounds: int) -> float:
    """Return the milliseconds that one call takes of the CPU, in this process and in those it started."""
    before = on_cpu()
    for _ in range(5 * rounds):
        await ask()
    return (on_cpu() - before) / (5 * rounds)


def on_cpu() -> float:
    """Return the milliseconds that this process and those it started have computed; sandboxes are not among them."""
    tasks = [task for pid in family(os.getpid()) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks if task.exists()) / 1e6


def family(pid: int) -> list[int]:
    children = [int(each) for task in Path(f"/proc/{pid}/task").glob("*/children") for each in task.read_text().split()]
    return [pid, *(each for child in children for each in family(child))]


def show(found: Times) -> None:
    base = statistics.median(found["direct"][0])
    print(f"{'':28}{'median ms':>10}{'p90':>8}{'adds':>8}{'ratio':>8}{'on CPU':>8}")
    for name, (times, cpu) in found.items():
        middle, p90 = statistics.median(times), statistics.quantiles(times, n=10)[-1]
        print(f"{name:28}{middle:10.2f}{p90:8.2f}{middle - base:8.2f}{middle / base:8.2f}{cpu:8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    show(asyncio.run(measure(parser.parse_args().rounds)))
