"""The containers of a server of its own, while it runs."""

from __future__ import annotations

import asyncio

import pytest

from agent_tools.mcp.config import McpConfig
from agent_tools.mcp.own_containers import own_containers
from agent_tools.runtime.runtime import Runtime
from tests.gateway.conftest import process_runtime
from tests.gateway.in_loop import until_true

__all__ = ["process_runtime"]


def test_a_sweep_that_fails_ends_no_server(process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.mcp.own_containers.SWEEP_EVERY", 0.01)
    sweeps: list[int] = []

    def sweep() -> int:
        sweeps.append(1)
        raise OSError(24, "Too many open files")

    async def main() -> None:
        async with own_containers(McpConfig(), process_runtime, is_alone=True) as stock:
            monkeypatch.setattr(stock.containers, "sweep", sweep)
            await until_true(lambda: len(sweeps) == 2)

    asyncio.run(main())
