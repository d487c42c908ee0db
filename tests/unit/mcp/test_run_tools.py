"""Tools that wait for a sandbox, without any sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.to_thread
from mcp_types import CallToolResult, TextContent

from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.sandbox_queue import SandboxQueue
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.run_tools import restart
from agent_tools.mcp.services import McpCall
from agent_tools.mcp.shapes import InContainer


class Full:
    """Containers whose slots are all in use."""

    def __init__(self) -> None:
        self.queue = SandboxQueue(0, 0)

    @contextmanager
    def acquire(self, id_: str, timeout: float) -> Iterator[Any]:
        with self.queue.slot("me", id_, timeout):
            yield None


class Ends:
    """The ends of earlier calls; the last call still runs."""

    def __init__(self, *earlier: str) -> None:
        self.earlier = [*earlier]

    def find(self, *_: str) -> str:
        return self.earlier[0]

    async def take_turn(self, earlier: str, within: float) -> bool:
        if len(self.earlier) == 1:
            raise TimeoutError
        return True

    def forget(self, earlier: str) -> None:
        self.earlier.remove(earlier)


class Call(McpCall):
    """A call that answers with an end itself."""

    async def _told(self, activity: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=activity)])


def test_all_ends_that_a_call_has_taken_are_told() -> None:
    services = SimpleNamespace(activities=Ends("one", "two", "three"), bounds=McpLimits())

    async def main() -> None:
        answer = await Call(cast("Any", services), "me", unheard).answer("code", cast("Any", None), "cntr_1")
        assert isinstance(answer, CallToolResult)
        assert answer.is_error
        texts = [each.text for each in answer.content if isinstance(each, TextContent)]
        assert texts[:2] == ["one", "two"]
        assert "still runs" in texts[2]

    anyio.run(main)


async def unheard(seconds: float, message: str) -> None: ...


def test_restarts_that_wait_for_a_sandbox_leave_the_threads_of_all_other_calls_free() -> None:
    full, ended = Full(), list[str]()
    handles = SimpleNamespace(ensure=lambda owner, container: None)
    stock, prepare = SimpleNamespace(containers=full), lambda told: None
    services = cast("Any", SimpleNamespace(stock=stock, prepare=prepare, handles=handles))

    async def restarted(container: str) -> None:
        try:
            await restart(McpCall(services, "me", unheard), InContainer(container=container))
        except NoSandbox:
            ended.append(container)

    async def main() -> None:
        shared = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
        async with anyio.create_task_group() as group:
            for number in range(shared + 1):
                group.start_soon(restarted, f"cntr_{number:048x}")
            try:
                with anyio.fail_after(60):
                    while full.queue.waiting <= shared:  # noqa: ASYNC110  (threads enter there)
                        await anyio.sleep(0.01)
                    await anyio.to_thread.run_sync(lambda: None)
            finally:
                full.queue.close(NoSandbox("The server stops."))
        assert len(ended) == shared + 1

    anyio.run(main)
