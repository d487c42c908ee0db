"""An MCP server on a port of this machine, with tools that answer, fail, and take long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.gateway.asking import until


@dataclass
class ToolServer:
    """It runs.

    Attributes:
        calls: the tools that were called.
        headers: the values of the header x-secret that came.
        traces: the `traceparent` of each call of `add`.
    """

    port: int = 0
    calls: list[str] = field(default_factory=list)
    headers: set[str] = field(default_factory=set)
    traces: list[Any] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp?token=canary-query"

    @property
    def entry(self) -> str:
        """What a gateway lists."""
        return f"127.0.0.1:{self.port}"

    def tool(self, **more: object) -> dict[str, object]:
        """The tool of a request, all of whose calls go ahead."""
        return {"type": "mcp", "server_label": "box", "server_url": self.url, "require_approval": "never", **more}


@contextmanager
def tool_server(known: int = 0, *, with_alike: bool = False) -> Iterator[ToolServer]:
    """Serve until the context ends; with `known` tools more, and `with_alike` one named as another but for a dot."""
    found, server = ToolServer(), MCPServer("box")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int, context: Context[Any, Any]) -> int:
        """Adds."""
        found.calls.append("add")
        found.traces.append((context.request_context.meta or {}).get("traceparent"))
        return a + b

    @server.tool(name="say.it")
    def say(text: str) -> str:
        """Says it again."""
        found.calls.append("say.it")
        return text * 2

    @server.tool()
    def fail() -> str:
        """Fails."""
        found.calls.append("fail")
        raise ToolError("it does not work")

    @server.tool()
    async def wait() -> str:
        """Takes long."""
        found.calls.append("wait")
        await anyio.to_thread.run_sync(found.go_on.wait, 30, abandon_on_cancel=True)
        return "done"

    if with_alike:

        @server.tool(name="say_it")
        def say_alike(text: str) -> str:
            found.calls.append("say_it")
            return text

    for number in range(known):
        server.tool(name=f"more_{number}")(say)
    with _served(_noting(server.streamable_http_app(), found), found):
        yield found


def _noting(app: ASGIApp, found: ToolServer) -> ASGIApp:
    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found.headers |= {
                value.decode() for name, value in scope["headers"] if name in (b"x-secret", b"authorization")
            }
        await app(scope, receive, send)

    return noting


@contextmanager
def _served(app: ASGIApp, found: ToolServer) -> Iterator[None]:
    listening = socket.create_server(("127.0.0.1", 0))
    found.port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        until(lambda: server.started)
        yield
    finally:
        found.go_on.set()
        server.should_exit = True
        thread.join()
        listening.close()
