"""The services of a server's tools, and one call of a tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import anyio
import anyio.to_thread
from mcp_types import CallToolResult

from agent_tools.containers.contents import Contents
from agent_tools.containers.failures import NoSandbox
from agent_tools.errors import AgentToolsError, EngineError, InvalidParams, ToolServiceError
from agent_tools.mcp.activities import Activities, Kind, Report
from agent_tools.mcp.activity import Activity, ActivityPlace, Prepare
from agent_tools.mcp.answers import failed, told
from agent_tools.mcp.apps import PageRuns
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.handles import Handles, Stock
from agent_tools.mcp.names import read_handle
from agent_tools.mcp.tasks import RunTasks
from agent_tools.runtime.in_thread import in_thread

T = TypeVar("T")
ToolAnswer = Union[CallToolResult, dict[str, Any]]
"""The answer of a tool, or a task for it."""


class McpServices:
    """Made when a server starts; `activities` end with it."""

    def __init__(self, stock: Stock, prepare: Prepare, activities: Activities, bounds: McpLimits) -> None:
        self.stock = stock
        self.prepare = prepare
        self.activities = activities
        self.bounds = bounds
        self.handles = Handles(stock)
        self.contents = Contents(stock.containers, stock.rows)
        self.runs = PageRuns(stock.containers.config.figures)
        self.tasks = RunTasks(bounds.max_timeout)


@dataclass(frozen=True)
class McpCall:
    """One call of a tool: `has_page` if its client shows the page for answers, `takes_tasks` if it polls tasks."""

    services: McpServices
    owner: str
    report: Report
    has_page: bool = False
    takes_tasks: bool = False

    def container(self, handle: str, *, make: bool = False) -> str:
        """Return the handle that the call names; without one, a new container's or the usual one.

        Raises:
            InvalidParams: no container is meant.
        """
        if handle:
            return read_handle(handle)
        handles = self.services.handles
        if found := handles.new(self.owner) if make else handles.usual:
            return found
        raise InvalidParams("Give the container: the handle of an earlier answer. run_python creates a container.")

    def place(self, container: str) -> ActivityPlace:
        """Return the container as activities have it."""
        services = self.services
        return ActivityPlace(services.stock.containers, services.handles, services.prepare, self.owner, container)

    async def aside(self, work: Callable[..., T], container: str, *arguments: Any) -> T:
        """Run a function on a container of this owner in a thread.

        Raises:
            ContainersError: there is none, or it is over.
        """

        def done() -> T:
            self.services.handles.ensure(self.owner, container)
            return work(container, *arguments)

        return await in_thread(done, lambda: None)  # a restart may wait for a sandbox

    async def answer(self, kind: Kind, begin: Callable[[], Activity], container: str) -> ToolAnswer:
        """Begin an activity in its turn, and answer at its end, or with the output so far after `answer_within`.

        A client that takes tasks gets a task then.
        """
        activities, until = self.services.activities, anyio.current_time() + self.services.bounds.answer_within
        before: CallToolResult | None = None
        while earlier := activities.find(self.owner, container, kind):
            try:
                is_ours_to_tell = await activities.take_turn(earlier, until - anyio.current_time())
            except TimeoutError:
                why = f"An earlier call still runs in {container}: call `wait`, or `restart` to end it."
                return _joined(before, failed(why))
            activities.forget(earlier)  # first: no other call tells it, too
            if is_ours_to_tell:
                before = _joined(before, await self._told(earlier))
        activity = begin()
        try:
            activities.begin(kind, activity)
        except NoSandbox as exc:  # what has been taken would be lost
            return _joined(before, failed(self.reason(exc)))
        await activities.follow(activity, until - anyio.current_time(), self.report)
        if self.takes_tasks and not activity.is_over:
            task = self.services.tasks.add(
                activity, lambda over: _joined(before, self._ended(over, told(over, whole=True)))
            )
            activities.then(activity, task.settle)
            return {"resultType": "task", **task.state()}
        return _joined(before, await self._taken(activity))

    async def follow(self, activity: Activity, within: float) -> CallToolResult:
        """Wait for an activity, up to a time in seconds, and answer with its new output."""
        await self.services.activities.follow(activity, within, self.report)
        return await self._taken(activity)

    async def _taken(self, activity: Activity) -> CallToolResult:
        if activity.is_over:
            self.services.activities.forget(activity)
        return await self._told(activity)

    def show(self, activity: Activity) -> None:
        """Let the page for answers show the outputs of a run that has ended. Not for the event loop."""
        self.services.runs.add(activity, self.reason(activity.failure) if activity.failure else "")

    async def _told(self, activity: Activity) -> CallToolResult:
        return await anyio.to_thread.run_sync(lambda: self._ended(activity, told(activity)))

    def _ended(self, activity: Activity, answer: CallToolResult) -> CallToolResult:
        """Return an answer with the failure of its activity, if there is one, and show its end on the page.

        Not for the event loop: there may be large pictures.
        """
        if self.has_page and activity.is_over:
            self.show(activity)
        if not activity.failure:
            return answer
        why = failed(self.reason(activity.failure))
        return why.model_copy(update={"content": [*answer.content, *why.content]})

    def reason(self, failure: Exception) -> str:
        """Return a failure's message for the client; internal details are for the operator only."""
        if is_ours(failure) and not self.services.stock.is_alone:
            return "The server cannot run code now: its engine does not work."
        return getattr(failure, "message", None) or str(failure) or type(failure).__name__


def _joined(before: CallToolResult | None, answer: CallToolResult) -> CallToolResult:
    return answer if before is None else answer.model_copy(update={"content": [*before.content, *answer.content]})


def is_ours(failure: Exception) -> bool:
    """Return whether a failure is the server's own, and neither the client's nor the code's."""
    cause = (isinstance(failure, ToolServiceError) and failure.exception) or failure
    return isinstance(cause, EngineError) or not isinstance(cause, AgentToolsError)
