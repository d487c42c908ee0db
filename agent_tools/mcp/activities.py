"""Work under way in containers: begun by one call, waited for by it and by later ones, ended if a call is cancelled.

Theory of operation
    A call begins an activity, which a task of the server runs in a thread, and waits for `answer_within` seconds. If it
    is not over by then, the call is answered with what there is, and `wait` finds the activity by its container. Each
    container has at most one run of code, and one command beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.keys import ANYONE
from agent_tools.mcp.activity import Activity, ActivityPlace
from agent_tools.mcp.config import McpLimits

Kind = Literal["code", "command"]
Key = tuple[str, str, Kind]
"""Owner, container, and what is under way in it."""
Report = Callable[[float, str], Awaitable[None]]
"""Sends progress: seconds since the beginning, and a message for people."""
SOON = 0.2  # seconds in which most calls are over, without progress
PROGRESS_SECONDS = 0.2  # between two notifications of progress
KEY_SHARE = 0.75  # of `max_sandboxes`, for the runs of one key
MAX_UNREAD = 8  # runs that ended and whose rest no call has asked for; the oldest is forgotten first


class Activities:
    """Those of all containers of a server, in its event loop."""

    def __init__(self, group: TaskGroup, bounds: McpLimits) -> None:
        self._group = group
        self._bounds = bounds
        self._threads = anyio.CapacityLimiter(bounds.max_runs)
        self._known: dict[Key, tuple[Activity, anyio.Event]] = {}

    def find(self, owner: str, container: str, kind: Kind | None = None) -> Activity | None:
        """Return what is under way in a container, or is over and was not told yet; the oldest of both kinds."""
        found = [
            activity
            for key, (activity, _) in self._known.items()
            if key[:2] == (owner, container) and kind in (None, key[2])
        ]
        return found[0] if found else None

    def begin(self, kind: Kind, activity: Activity) -> None:
        """Run an activity in a thread, from now on.

        Raises:
            NoSandbox: as many are under way as may be, of all or of this owner.
        """
        self._check_room(activity.place)
        over = anyio.Event()
        self._known[(activity.place.owner, activity.place.container, kind)] = activity, over
        self._group.start_soon(self._run, activity, over)
        unread = [key for key, (each, _) in self._known.items() if each.is_over]
        for key in unread[:-MAX_UNREAD]:
            del self._known[key]

    async def attend(self, activity: Activity, within: float, report: Report) -> None:
        """Wait for the end of an activity, so many seconds at most. Being cancelled ends it."""
        if not (over := self._end_of(activity)):
            return
        activity.attendants += 1
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
            activity.attendants -= 1

    async def take_turn(self, activity: Activity, within: float) -> bool:
        """Wait until an earlier activity is over, so many seconds at most; return True if it has to be told by others.

        Raises:
            TimeoutError: it is still under way.
        """
        if over := self._end_of(activity):
            with anyio.fail_after(within):
                await over.wait()
        return not activity.attendants and self._end_of(activity) is not None

    def forget(self, activity: Activity) -> None:
        """Forget one that was told to its end."""
        self._known = {key: known for key, known in self._known.items() if known[0] is not activity}

    async def close(self) -> None:
        """End all, and wait for their ends."""
        with anyio.CancelScope(shield=True):
            for activity, _ in list(self._known.values()):
                await anyio.to_thread.run_sync(activity.cancel)
            for _, over in list(self._known.values()):
                await over.wait()

    def _check_room(self, place: ActivityPlace) -> None:
        active = [key for key, (activity, _) in self._known.items() if not activity.is_over]
        if len(active) >= self._bounds.max_runs:
            raise NoSandbox("Too much is under way on this server; try again later.")
        if place.owner != ANYONE:
            most = max(1, int(place.containers.config.max_sandboxes * KEY_SHARE))
            used = {container for owner, container, _ in active if owner == place.owner} - {place.container}
            if len(used) >= most:
                raise NoSandbox(
                    f"You use {len(used)} containers at once, as many as one key may; wait for one of them."
                )

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
