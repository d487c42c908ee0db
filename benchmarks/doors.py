"""What each door adds to a warm call, as ratios to the direct call in the same run.

    .venv/bin/python benchmarks/doors.py [--rounds 200]

The same `1 + 1` is run in turn, round by round, in sandboxes of the same kind: directly by `Sandbox.run_code`, through
the MCP server on stdio, and through it over HTTP, each by the real client library in this process. `list_resources` is
shown beside them: it is the protocol alone, without any code. `adds` is the difference to the direct call in time, `on
CPU` what client and server computed for a call: on a machine with other work the first grows, and the second does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
from mcp import Client, StdioServerParameters

from agent_tools import Sandbox

CODE = "1 + 1"
SERVER = ("-m", "agent_tools", "mcp")
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
        yield f"http://{address}/mcp"
        process.terminate()


async def call_of(client: Client) -> Ask:
    """Return what runs the code in one container of a client's own."""
    container = (await client.call_tool("run_python", {"code": CODE})).structured_content["container"]

    async def call() -> None:
        answer = await client.call_tool("run_python", {"code": CODE, "container": container})
        assert answer.structured_content["result"] == "2"

    return call


async def measure(rounds: int) -> Times:
    """Return what each door took, asked in turn."""
    with Sandbox() as sandbox:
        async with (
            Client(StdioServerParameters(command=sys.executable, args=list(SERVER))) as stdio,
            http_server() as url,
            Client(url) as http,
        ):

            async def direct() -> None:
                assert sandbox.run_code(CODE).value == 2

            asked: dict[str, Ask] = {
                "direct": direct,
                "MCP, stdio": await call_of(stdio),
                "MCP, HTTP": await call_of(http),
                "MCP, stdio, list_resources": stdio.list_resources,
                "MCP, HTTP, list_resources": http.list_resources,
            }
            found: dict[str, list[float]] = {name: [] for name in asked}
            for _ in range(rounds):
                for name, ask in asked.items():
                    began = time.perf_counter()
                    await ask()
                    found[name].append(1000 * (time.perf_counter() - began))
            return {name: (times, await computed(asked[name], rounds)) for name, times in found.items()}


async def computed(ask: Ask, rounds: int) -> float:
    """Return the milliseconds that one call takes of the CPU, in this process and in those it started."""
    before = on_cpu()
    for _ in range(rounds):
        await ask()
    return (on_cpu() - before) / rounds


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
    parser.add_argument("--rounds", type=int, default=200)
    show(asyncio.run(measure(parser.parse_args().rounds)))
