"""HTTP to a listed server: only to the checked address, with a limit of bytes."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

import anyio.to_thread
import certifi
import httpx2

from agent_tools import settings
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, ServerNotAllowed

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
