"""Connections to the MCP servers of one response, each in a session of its own, from the first message to the last.

Theory of operation. The turn runs in a thread, MCP's client in an event loop. So a response with servers has a loop
in its own thread, from its first server to its end. A task for each server keeps its session open; a call is another
task, for which the turn's thread waits with a deadline. `cancel`, from any thread, ends all waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent_tools.gateway import remote_mcp
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure, RemoteServer
from agent_tools.models.base import JsonObject

if TYPE_CHECKING:
    from mcp import Client


_T = TypeVar("_T")
MAX_PAGES = 50  # of one server's list of tools


class McpConnections:
    """The connections of one response; `close` ends them. They are made in the turn's thread; calls may be in others.

    Attributes:
        config: the gateway's settings.
        servers: the allowed servers.
    """

    def __init__(self, config: GatewayConfig, servers: AllowedServers) -> None:
        self.config = config
        self.servers = servers
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._waiting: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_cancelled = False

    def tools(self, server: RemoteServer) -> tuple[McpConnection, list[JsonObject]]:
        """Connect to a server and list its tools.

        Raises:
            RemoteFailure: it is not allowed, or does not answer correctly.
        """
        portal = self._portal = self._portal or self._stack.enter_context(_portal())
        self.wait(partial(_look_up, self.servers, server.url))  # first, since its errors name the cause
        connection = McpConnection(self, server)
        ended, _ = portal.start_task(connection.hold)
        self._stack.callback(ended.cancel)
        return connection, self.wait(connection.listed)

    def wait(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a coroutine in the loop, within `mcp_timeout`.

        Raises:
            RemoteFailure: it failed, took too long, or `cancel` ended it.
        """
        try:
            assert self._portal
            future = self._portal.start_task_soon(_within, self.config.mcp_timeout, work)
        except RuntimeError as exc:  # the loop has ended
            raise RemoteFailure("The response that named this server has ended.") from exc
        with self._lock:
            self._waiting.add(future)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise RemoteFailure("The turn was ended before the server answered.") from None
        except Exception as exc:  # a client's library may raise anything: it is shown as the server's failure
            raise remote_mcp.session_failure(exc, self.config.mcp_timeout) from exc
        finally:
            with self._lock:
                self._waiting.discard(future)

    def cancel(self) -> None:
        """End all waits, including future ones."""
        with self._lock:
            self._is_cancelled = True
            waiting = list(self._waiting)
        for future in waiting:
            future.cancel()

    def close(self) -> None:
        """End all sessions, calls of code, and the loop. Closing again does nothing."""
        self.cancel()
        self._stack.close()


class McpConnection:
    """The session with one server. Its coroutines are for the loop."""

    def __init__(self, all_: McpConnections, server: RemoteServer) -> None:
        self._all = all_
        self.server = server
        self._client: Client | None = None
        self._failure: BaseException | None = None
        self._settled: anyio.Event | None = None

    def call(self, name: str, arguments: JsonObject) -> JsonObject:
        """Call a tool, from the turn's thread; return its answer as MCP has it.

        Raises:
            RemoteFailure: it could not be called. A failure of its own is in the answer.
        """
        return self._all.wait(partial(self.called, name, arguments))

    async def hold(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the session open until the task is cancelled."""
        settled = self._settled = anyio.Event()
        task_status.started()
        try:
            async with remote_mcp.opened_session(self._all.config, self._all.servers, self.server) as client:
                self._client = client
                settled.set()
                await anyio.sleep_forever()
        except Exception as exc:  # noqa: BLE001  (of a client's library; `connected` raises it again)
            self._failure = exc
        finally:
            settled.set()

    async def connected(self) -> Client:
        """Return the client, once it is connected.

        Raises:
            Exception: the one that ended the session.
        """
        assert self._settled
        await self._settled.wait()
        if self._failure or self._client is None:
            raise self._failure or ConnectionError("the session has ended")
        return self._client

    async def listed(self) -> list[JsonObject]:
        """Return the server's tools as MCP lists them; at most one page beyond the limit."""
        client, found, cursor = await self.connected(), [], None
        for _ in range(MAX_PAGES):
            page = (await client.list_tools(cursor=cursor)).model_dump(by_alias=True, mode="json")
            found += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    async def called(self, name: str, arguments: JsonObject) -> JsonObject:
        """Call a tool."""
        client = await self.connected()
        answer: JsonObject = (await client.call_tool(name, arguments)).model_dump(by_alias=True, mode="json")
        return answer


def _portal() -> Any:
    for name in ("mcp.client", "httpx", "httpx2"):  # they log URLs and answers of servers
        logging.getLogger(name).setLevel(logging.CRITICAL if name == "mcp.client" else logging.WARNING)
    return start_blocking_portal(name="gateway-mcp")


async def _look_up(servers: AllowedServers, url: str) -> None:
    """Check a server's address. A resolver that does not answer stays in its own thread."""
    await anyio.to_thread.run_sync(servers.address, url, abandon_on_cancel=True)


async def _within(seconds: float, work: Callable[[], Awaitable[_T]]) -> _T:
    with anyio.fail_after(seconds):
        return await work()
