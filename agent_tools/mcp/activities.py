"""Runs in containers, which may outlive the call that began them: later calls wait for them, cancelling ends them.

Theory of operation
    A call begins an activity, which a task of the server runs in a thread, and waits for `answer_within` seconds. If it
    is not over by then, the call is answered with the output so far, and `wait` finds the activity by its container.
    Each container has at most one run of code, and one command beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.keys import first_of_most
from agent_tools.mcp.activity import Activity, ActivityPlace
from agent_tools.mcp.config import McpLimits

Kind = Literal["code", "command"]
Key = tuple[str, str, Kind]
"""The owner, the container, and the kind of activity."""
Report = Callable[[float, str], Awaitable[None]]
"""Sends progress: seconds since the beginning, and a message for people."""
SOON = 0.2  # seconds in which most calls are over, without progress
PROGRESS_SECONDS = 0.2  # between two notifications of progress
MAX_UNREAD = 8  # runs of one key that ended and whose rest no call has asked for; the oldest is forgotten first
MAX_UNREAD_OF_ALL = 64  # likewise, of all keys; the first of the key that has most is forgotten first


class Activities:
    """The activities of all containers of a server, in its event loop."""

    def __init__(self, group: TaskGroup, bounds: McpLimits) -> None:
        self._group = group
        self._bounds = bounds
        self._threads = anyio.CapacityLimiter(bounds.max_runs)
        self._known: dict[Key, tuple[Activity, anyio.Event]] = {}

    def find(self, owner: str, container: str, kind: Kind | None = None) -> Activity | None:
        """Return the oldest activity of a container that runs, or has ended and was not reported."""
        found = [
            activity
            for key, (activity, _) in self._known.items()
            if key[:2] == (owner, container) and kind in (None, key[2])
        ]
        return found[0] if found else None

    def begin(self, kind: Kind, activity: Activity) -> None:
        """Run an activity in a thread, from now on.

        Raises:
            NoSandbox: the limit of activities is reached, of all or of this owner.
        """
        self._check_room(activity.place)
        over, owner = anyio.Event(), activity.place.owner
        self._known[(owner, activity.place.container, kind)] = activity, over
        self._group.start_soon(self._run, activity, over)
        unread = [key for key, (each, _) in self._known.items() if each.is_over]
        for key in [key for key in unread if key[0] == owner][:-MAX_UNREAD]:
            unread.remove(key)
            del self._known[key]
        while len(unread) > MAX_UNREAD_OF_ALL:
            del self._known[unread.pop(first_of_most([key[0] for key in unread]))]

    async def follow(self, activity: Activity, within: float, report: Report) -> None:
        """Wait for the end of an activity, up to a time in seconds. Cancelling the wait ends the activity."""
        if not (over := self._end_of(activity)):
            return
        activity.followers += 1
        try:
            with anyio.move_on_after(within):
                with anyio.move_on_after(SOON):
                    await over.wait()
                if not over.is_set():
                    await self._beat_until(over, activity, report)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(activity.cancel)
            raise
        finally:
            activity.followers -= 1

    def then(self, activity: Activity, work: Callable[[], object]) -> None:
        """Do work in a thread once a running activity is over."""

        async def wait() -> None:
            if over := self._end_of(activity):
                await over.wait()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(work)

        self._group.start_soon(wait)

    async def take_turn(self, activity: Activity, within: float) -> bool:
        """Wait until an earlier activity is over, up to a time in seconds; return True if another call will report it.

        Raises:
            TimeoutError: it is still running.
        """
        if (over := self._end_of(activity)) and not over.is_set():
            with anyio.fail_after(within):
                await over.wait()
        return not activity.followers and self._end_of(activity) is not None

    def forget(self, activity: Activity) -> None:
        """Remove an activity that was reported to its end."""
        self._known = {key: known for key, known in self._known.items() if known[0] is not activity}

    async def close(self) -> None:
        """End all, and wait for their ends."""
        with anyio.CancelScope(shield=True):
            for activity, _ in list(self._known.values()):
                await anyio.to_thread.run_sync(activity.cancel)
            for _, over in list(self._known.values()):
                await over.wait()

    def _check_room(self, place: ActivityPlace) -> None:
        active = Counter(owner for (owner, *_), (activity, _) in self._known.items() if not activity.is_over)
        if active.total() >= self._bounds.max_runs:
            raise NoSandbox("Too many calls are running on this server; try again later.")
        if active[place.owner] >= (most := place.containers.config.most_of_key(self._bounds.max_runs)):
            raise NoSandbox(f"{most} calls of yours are running, the most that one key may have; try again later.")

    def _end_of(self, activity: Activity) -> anyio.Event | None:
        return next((over for each, over in self._known.values() if each is activity), None)

    async def _run(self, activity: Activity, over: anyio.Event) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(activity.run, limiter=self._threads)
        finally:
            over.set()
            if activity.was_cancelled:  # nobody waits for it any more
                self.forget(activity)

    async def _beat_until(self, over: anyio.Event, activity: Activity, report: Report) -> None:
        shown, at = "", anyio.current_time()
        while not over.is_set():
            now, progress = anyio.current_time(), activity.news
            if progress != shown or now - at >= self._bounds.beat:
                shown, at = progress, now
                await report(activity.seconds, activity.progress)
            with anyio.move_on_after(PROGRESS_SECONDS):
                await over.wait()
