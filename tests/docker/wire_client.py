"""A client of a wire whose code does not end, as a program that can be killed: `python wire_client.py URL WIRE KEY`.

It imports little, since each test starts one or several.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import httpx
from websockets.sync.client import connect

from tests.wires.exec_client import ExecClient

BEATS = "import time\nwhile True:\n    open('beat', 'w').write(str(time.time()))\n    time.sleep(0.05)"


def run_for_ever(url: str, wire: str, key: str) -> None:
    """Run code that does not end, as a client of the wire."""
    headers = {"Authorization": f"Bearer {key}"}
    if wire == "vllm":
        asyncio.run(run_by_vllm(f"{url}/vllm/sse", headers))
    if wire == "codex":
        run_by_codex(f"{url.replace('http', 'ws', 1)}/codex/box", headers)
    given: dict[str, Any] = {"code": BEATS}
    path = {"sandboxfusion": "/run_code", "librechat": "/exec", "e2b": "/execute", "terminal": "/python"}[wire]
    if wire == "e2b":
        made = httpx.post(f"{url}/e2b/sandboxes", json={"timeout": 600}, headers=headers, timeout=120).json()
        headers["E2b-Sandbox-Id"] = made["sandboxID"]
    given |= {"sandboxfusion": {"language": "python", "run_timeout": 600}, "librechat": {"lang": "py"}}.get(wire, {})
    httpx.post(f"{url}/{wire}{path}", json=given, headers=headers, timeout=600)


def run_by_codex(url: str, headers: dict[str, str]) -> None:
    with connect(url, additional_headers=headers) as socket:
        client = ExecClient(socket.send, socket.recv)
        client.initialize()
        client.start("1", "python3", "-c", BEATS)
        client.output("1")


async def run_by_vllm(url: str, headers: dict[str, str]) -> None:
    from mcp import ClientSession  # longer to import than the other clients take
    from mcp.client.sse import sse_client

    async with contextlib.AsyncExitStack() as stack:
        streams = await stack.enter_async_context(sse_client(url, headers={**headers, "x-session-id": "1"}))
        session = await stack.enter_async_context(ClientSession(*streams))
        await session.initialize()
        await session.call_tool("python", {"code": BEATS})


if __name__ == "__main__":
    run_for_ever(*sys.argv[1:])
