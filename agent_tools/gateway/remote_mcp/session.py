"""A session with one server, by MCP's own client; imported at the first use."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.to_thread
import certifi
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from agent_tools import settings
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, RemoteFailure, RemoteServer, ServerNotAllowed

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


# HTTP to a listed server: only to the checked address, with a limit of bytes.

CONNECT_TIMEOUT = 10.0  # seconds


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Looks up a host at each request, and connects to the checked address, with the host's name in TLS.

    `max_bytes` limits all answers of a server together; compressed answers are refused.
    """

    def __init__(self, servers: AllowedServers, max_bytes: int) -> None:
        self._servers = servers
        self._left = max_bytes
        self._inner = httpx2.AsyncHTTPTransport(verify=_context(), trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            ServerNotAllowed: its host is not allowed.
        """
        host = request.url.host
        address = await anyio.to_thread.run_sync(self._servers.address, str(request.url), abandon_on_cancel=True)
        request.headers["Accept-Encoding"] = "identity"
        request.headers["Host"] = request.url.netloc.decode("ascii")
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ProtocolError("The server sent a compressed answer, which is not accepted.")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, self._take)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ServerNotAllowed("The server sent more than allowed (max_mcp_bytes).")


class _Counted(httpx2.AsyncByteStream):
    """An answer's bytes, counted as they come."""

    def __init__(self, inner: httpx2.AsyncByteStream, take: Callable[[int], None]) -> None:
        self._inner = inner
        self._take = take

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._take(len(data))
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(settings.ca_bundle() or certifi.where()))
