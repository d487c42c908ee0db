"""A session with one server, by MCP's own client; imported when a request needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.reach import Reach, RemoteFailure, RemoteServer, ServerRefused
from agent_tools.gateway.remote_mcp.transport import CONNECT_TIMEOUT, CheckedTransport

MAX_WORDS = 1_000  # characters of a server's own words on an error


class McpSession:
    """Opens sessions, and puts their failures into words."""

    @staticmethod
    @asynccontextmanager
    async def opened(config: GatewayConfig, reach: Reach, server: RemoteServer) -> AsyncIterator[Client]:
        """Connect to a server until the context ends.

        Raises:
            Exception: whatever the client's libraries raise; see `failure`.
        """
        timeout = httpx2.Timeout(config.mcp_timeout, connect=CONNECT_TIMEOUT)
        transport, headers = CheckedTransport(reach, config.max_mcp_bytes), dict(server.headers)
        async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False) as http:
            stream = streamable_http_client(
                server.url, http_client=http, max_sse_event_size=config.max_mcp_bytes, terminate_on_close=False
            )
            async with Client(stream, cache=None, read_timeout_seconds=config.mcp_timeout) as client:
                yield client

    @staticmethod
    def failure(exc: BaseException, timeout: float) -> RemoteFailure:
        """Return the failure that clients and models are told of: in words of ours, or the server's own."""
        while inner := getattr(exc, "exceptions", None):  # of a group, which Python 3.10 does not know
            exc = inner[0]
        if isinstance(exc, RemoteFailure):
            return exc
        if isinstance(exc, ServerRefused):
            return RemoteFailure(str(exc))
        if isinstance(exc, TimeoutError):
            return RemoteFailure(f"The server did not answer within {timeout:g} seconds.")
        if isinstance(exc, MCPError):
            return RemoteFailure(exc.error.message[:MAX_WORDS], "mcp_protocol_error", exc.error.code)
        return RemoteFailure(f"The server could not be spoken to ({type(exc).__name__}).")
