"""Runs as tasks, for clients that declare them: a long call is answered with a task, which the client polls.

The protocol is https://github.com/modelcontextprotocol/ext-tasks (SEP-2663). A task belongs to the key that made it.
Its result is the whole answer of the call. Tasks are in memory and end with the server.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable
from typing import Any

import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, CallToolResult, RequestParams

from agent_tools.bodies.json_body import size_of
from agent_tools.containers.keys import first_of_most
from agent_tools.limits import MIB
from agent_tools.mcp.activity import TAIL, Activity
from agent_tools.text import utc_text

EXTENSION = "io.modelcontextprotocol/tasks"
MAX_ENDED = 16  # tasks of one key that are over; the oldest is forgotten first
MAX_ENDED_BYTES = 256 * MIB  # of the results of all keys; the first of the key that has most is forgotten first
LASTING = 3_600.0  # seconds that a result can be had, after the longest run
POLL, POLL_LATER = 1_000, 5_000  # milliseconds between two polls: in the first minute, and then
_MINUTE = 60.0
_log = logging.getLogger(__name__)

Tell = Callable[[Activity], CallToolResult]
"""Returns the whole answer of an activity that is over."""


class TaskParams(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`; others, such as those of `tasks/update`, are ignored."""

    task_id: str


class RunTask:
    """A run that its client polls. At its end only its answer is stored."""

    def __init__(self, activity: Activity, ttl: float, tell: Tell) -> None:
        now = time.time()
        self.id = secrets.token_urlsafe(24)
        self.owner = activity.place.owner
        self.expires = now + ttl
        self._facts = {"taskId": self.id, "createdAt": utc_text(now), "ttlMs": round(ttl * 1000)}
        self._activity: Activity | None = activity
        self._tell = tell
        self.size = 0  # of the result, once there is one: about its bytes
        activity.followers += 1  # for ever: no later call has to tell of it

    def state(self) -> dict[str, Any]:
        """Return the task, with its result if there is one: a DetailedTask."""
        activity = self._activity
        if activity is None:
            return self._facts
        poll = POLL if activity.seconds < _MINUTE else POLL_LATER
        message = " ".join(activity.progress.split())[-TAIL:]
        working = {"status": "working", "statusMessage": message, "pollIntervalMs": poll}
        return {**self._facts, "lastUpdatedAt": utc_text(time.time()), **working}

    @property
    def is_settled(self) -> bool:
        """The task has its end."""
        return self._activity is None

    def settle(self) -> None:
        """Make the result of a run that is over. Not for the event loop: it may have large pictures."""
        activity = self._activity
        assert activity
        facts = {**self._facts, "lastUpdatedAt": utc_text(time.time())}
        if activity.was_cancelled:
            self._facts = {**facts, "status": "cancelled"}
        else:
            try:
                result = self._tell(activity).model_dump(by_alias=True, mode="json", exclude_none=True)
                self._facts = {**facts, "status": "completed", "result": result}
                self.size = size_of(result, math.inf)
            except Exception:  # noqa: BLE001  (it would end the server for all)
                _log.exception("the result of a task could not be made")
                self._facts = {**facts, "status": "failed", "statusMessage": "The result could not be made."}
        self._activity = None

    async def cancel(self) -> None:
        """End the run, if it is still running; variables stay."""
        if (activity := self._activity) and not activity.is_over:
            await anyio.to_thread.run_sync(activity.cancel)


class RunTasks:
    """The tasks of a server, in its event loop. `longest` are the seconds that a run may take at most."""

    def __init__(self, longest: float) -> None:
        self._ttl = longest + LASTING
        self._tasks: dict[str, RunTask] = {}

    def add(self, activity: Activity, tell: Tell) -> RunTask:
        """Create a task for a running activity."""
        task = RunTask(activity, self._ttl, tell)
        self._tasks[task.id] = task
        self._forget(task.owner)
        return task

    def find(self, owner: str, id_: str) -> RunTask:
        """Return a task.

        Raises:
            MCPError: this owner has no such task, or it has expired.
        """
        self._forget(owner)
        task = self._tasks.get(id_)
        if task is None or task.owner != owner:
            raise MCPError(INVALID_PARAMS, "There is no such task, or it has expired: run the code again.")
        return task

    def _forget(self, owner: str) -> None:
        """Forget tasks that have expired, and the oldest that are over of this owner."""
        now = time.time()
        self._tasks = {id_: task for id_, task in self._tasks.items() if task.expires > now}
        over = [task for task in self._tasks.values() if task.is_settled]
        ended = [task.id for task in over if task.owner == owner]
        for id_ in ended[:-MAX_ENDED]:
            del self._tasks[id_]
        over = [task for task in over if task.id in self._tasks]
        while sum(task.size for task in over) > MAX_ENDED_BYTES:
            del self._tasks[over.pop(first_of_most([task.owner for task in over])).id]


def undeclared() -> MCPError:
    """Return the error for a client that asks for a task without declaring that it knows them."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"Declare the extension {EXTENSION} to use tasks.", needed)
