"""An MCP server in this process, on an engine that is none, and the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp_types import CallToolResult, TextContent
from opentelemetry.sdk.trace import TracerProvider

from agent_tools.mcp.config import McpConfig
from agent_tools.mcp.own_containers import own_containers
from agent_tools.mcp.server import make_server
from agent_tools.runtime.runtime import Runtime
from tests.gateway.conftest import process_runtime

__all__ = ["process_runtime"]

Talk = Callable[[Client], Awaitable[None]]
Converse = Callable[..., None]
FOREVER = "import time\nwhile True: time.sleep(0.01)"


@pytest.fixture
def converse(process_runtime: Runtime) -> Converse:
    """Has a client talk with a server of its own."""

    def run(
        talk: Talk,
        mode: Literal["auto", "legacy"] = "auto",
        prepare: Callable[[Callable[[str], None]], object] = lambda told: None,
        *,
        is_alone: bool = True,
        runtime: Runtime = process_runtime,
        tracing: TracerProvider | None = None,
        extensions: Sequence[ClientExtension] = (),
        **settings: Any,
    ) -> None:
        failed: list[Exception] = []

        async def main() -> None:
            config = McpConfig(**settings)
            async with (
                own_containers(config, runtime, is_alone=is_alone) as stock,
                Client(make_server(stock, prepare, config, tracing), mode=mode, extensions=list(extensions)) as client,
            ):
                try:
                    await talk(client)
                except Exception as exc:
                    failed.append(exc)

        asyncio.run(main())
        if failed:
            raise failed[0]

    return run


def text_of(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if isinstance(block, TextContent))
