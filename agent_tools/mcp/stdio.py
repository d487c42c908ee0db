"""A server on stdin and stdout, for the one client that started the process."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from mcp.server.stdio import stdio_server

from agent_tools.machine.pipes import own_pipes
from agent_tools.mcp.activity import Prepare
from agent_tools.mcp.config import McpConfig, McpLimits
from agent_tools.mcp.handles import Stock
from agent_tools.mcp.own_containers import own_containers
from agent_tools.mcp.server import make_server

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime


def serve(config: McpConfig, runtime: Runtime, prepare: Prepare) -> None:
    """Serve until the client disconnects; then end everything that runs."""
    asyncio.run(_serve(config, runtime, prepare))


async def _serve(config: McpConfig, runtime: Runtime, prepare: Prepare) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with own_containers(config, runtime, is_alone=True) as stock:
        serving, ending = asyncio.create_task(_converse(stock, prepare, config)), asyncio.create_task(stopping.wait())
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
    if stopping.is_set():
        os._exit(128 + signal.SIGTERM)  # a thread still reads stdin, and nothing wakes it
    await serving


async def _converse(stock: Stock, prepare: Prepare, bounds: McpLimits) -> None:
    async with own_pipes(bounds.max_body_bytes) as (lines, sink), stdio_server(lines, sink) as (read, write):
        server = make_server(stock, prepare, bounds)
        await server.run(read, write, server.create_initialization_options())
