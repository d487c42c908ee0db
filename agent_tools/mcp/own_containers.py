"""The containers of a server of its own: kept in memory, in a private folder, gone with the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from agent_tools.containers.containers import Containers
from agent_tools.containers.rows import MemoryRows
from agent_tools.containers.sweep import failures
from agent_tools.machine.removal import remove_tree
from agent_tools.mcp.config import McpConfig
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.runtime.in_thread import to_its_end

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime
from agent_tools.mcp.handles import Stock

SWEEP_EVERY = 15.0  # seconds


@asynccontextmanager
async def own_containers(config: McpConfig, runtime: Runtime, *, is_alone: bool) -> AsyncIterator[Stock]:
    """Have containers for as long as the server runs."""
    async with AsyncExitStack() as stack:
        folder = make_temp_work_dir()
        stack.push_async_callback(to_its_end, lambda: remove_tree(folder))
        stack.push_async_callback(to_its_end, runtime.settle)
        rows = MemoryRows()
        containers = Containers(replace(config, data_dir=folder, keep_variables=True), rows, runtime)
        stack.push_async_callback(to_its_end, containers.close)
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        group.start_soon(_sweep, containers)
        yield Stock(containers, rows, is_alone, config.allowed_domains)


async def _sweep(containers: Containers[McpConfig]) -> None:
    while True:
        await anyio.sleep(SWEEP_EVERY)
        await anyio.to_thread.run_sync(failures, containers.sweep)
