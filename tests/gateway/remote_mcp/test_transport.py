"""HTTP to a listed server: by the host's name, to the address that was checked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers, ServerNotAllowed
from agent_tools.gateway.remote_mcp.checked_transport import CheckedTransport


class Answering(BaseHTTPRequestHandler):
    """Answers with what it was asked for, compressed if so asked."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/away" else 200)
        if self.path == "/away":
            self.send_header("Location", "http://169.254.169.254/latest")
        if self.path == "/packed":
            self.send_header("Content-Encoding", "gzip")
        body = f"{self.headers['Host']} {self.headers['Accept-Encoding']}".encode() + b"." * 1_000
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(port: int, path: str = "/", *, addresses: list[list[str]] | None = None, most: int = 10_000) -> str:
    """Ask a server of the name tools.example.com, which is looked up for each request."""
    found = iter(addresses or [["127.0.0.1"]] * 9)
    reach = AllowedServers([f"tools.example.com:{port}"], ["127.0.0.0/8"], look_up=lambda *_: next(found))

    async def ask() -> str:
        async with httpx2.AsyncClient(transport=CheckedTransport(reach, most), follow_redirects=True) as client:
            return (await client.get(f"http://tools.example.com:{port}{path}")).text

    return asyncio.run(ask())


def test_the_server_reads_its_name(port: int) -> None:
    assert get(port).startswith(f"tools.example.com:{port} identity")


def test_addresses_are_checked_at_each_request(port: int) -> None:
    with pytest.raises(ServerNotAllowed, match="mcp_private"):
        get(port, addresses=[["169.254.169.254"]])


def test_a_redirect_elsewhere_is_refused(port: int) -> None:
    with pytest.raises(ServerNotAllowed, match="mcp_servers"):
        get(port, "/away")


def test_what_is_packed_is_refused(port: int) -> None:
    with pytest.raises(httpx2.ProtocolError):
        get(port, "/packed")


def test_bytes_are_bounded(port: int) -> None:
    with pytest.raises(ServerNotAllowed, match="max_mcp_bytes"):
        get(port, most=1_000)
