"""A session with one server, by MCP's own client; imported at the first use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, ServerNotAllowed
from agent_tools.gateway.remote_mcp.checked_transport import CONNECT_TIMEOUT, CheckedTransport
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure, RemoteServer

MAX_WORDS = 1_000  # characters of a server's own words on an error


@asynccontextmanager
async def opened_session(config: GatewayConfig, servers: AllowedServers, server: RemoteServer) -> AsyncIterator[Client]:
    """Connect to a server until the context ends.

    Raises:
        Exception: any error of the client's libraries; see `session_failure`.
    """
    timeout = httpx2.Timeout(config.mcp_timeout, connect=CONNECT_TIMEOUT)
    transport, headers = CheckedTransport(servers, config.max_mcp_bytes), dict(server.headers)
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False) as http:
        stream = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=config.max_mcp_bytes, terminate_on_close=False
        )
        async with Client(stream, cache=None, read_timeout_seconds=config.mcp_timeout) as client:
            yield client


def session_failure(exc: BaseException, timeout: float) -> RemoteFailure:
    """Return the failure for clients and models, with our message or the server's."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, RemoteFailure):
        return exc
    if isinstance(exc, ServerNotAllowed):
        return RemoteFailure(str(exc))
    if isinstance(exc, TimeoutError):
        return RemoteFailure(f"The server did not answer within {timeout:g} seconds.")
    if isinstance(exc, MCPError):
        return RemoteFailure(exc.error.message[:MAX_WORDS], "mcp_protocol_error", exc.error.code)
    return RemoteFailure(f"The server could not be reached ({type(exc).__name__}).")
