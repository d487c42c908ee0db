"""The sandboxes of E2B's protocol: each is a container with stored state about it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainersError, RowsAway
from agent_tools.containers.records import ContainerRecord, WireValue
from agent_tools.containers.rows import Rows
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.e2b.connect import message_of
from agent_tools.wires.open_resources import (
    COMMAND,
    SHELL,
    SLOT_TIMEOUT,
    CodeRun,
    OpenResources,
    Place,
    Processes,
    used,
)
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import Routes, WireRequest, aside

ORIGIN = "e2b"
HOME = "/home/user"  # a link to the folder of files
_HOME = Home(HOME, aliases=("/workspace", "~"))
path_of, in_sandbox, check_spared = _HOME.resolved, _HOME.in_sandbox, _HOME.check_spared
MAX_COMMANDS, MAX_CONTEXTS = 32, 8  # that are open in a sandbox
RETRY_SECONDS = 5.0  # between two questions to a store that does not answer
PORTS = ("49983", "49999", "")  # of files and processes, and of code
_ID = re.compile(r"i[0-9a-f]{24}")
_HOST = re.compile(r"([0-9]{1,5})-(i[0-9a-f]{24})\.")
_GONE = "The sandbox was not found"  # which the SDKs look for
T = TypeVar("T")


class E2BState(BaseModel):
    """Everything about a sandbox that its container does not have. `ends` is in seconds since 1970."""

    template: str
    metadata: dict[str, str]
    envs: dict[str, str]
    ends: float
    auto_pause: bool = False
    auto_resume: bool = False
    is_paused: bool = False


@dataclass(eq=False)
class Context:
    """A further kernel of a sandbox."""

    sandbox: Sandbox
    cwd: str


@dataclass(frozen=True)
class E2BSandbox:
    """A sandbox: its container and its state."""

    row: ContainerRecord
    state: E2BState

    @property
    def id(self) -> str:
        """Its id, which is the container's, too."""
        return self.row.id

    @property
    def place(self) -> Place:
        """The key of its code, open commands, watchers and kernels."""
        return self.row.owner, self.row.id


class E2BWire:
    """The state of the wire: open commands and kernels, and the timers that end sandboxes. For one event loop."""

    def __init__(self, containers: Containers[Any], rows: Rows, retry_seconds: float = RETRY_SECONDS) -> None:
        self.containers = containers
        self.retry_seconds = retry_seconds
        self.rows = rows
        self.commands = Processes(containers, COMMAND, MAX_COMMANDS)
        self.contexts: OpenResources[Context] = OpenResources(
            containers, SHELL, MAX_CONTEXTS, "contexts", lambda each: each.sandbox.close()
        )
        self.watchers: dict[str, Any] = {}
        self.runs: WeakKeyDictionary[CodeRun, Place] = WeakKeyDictionary()
        self.counts: WeakKeyDictionary[Sandbox, int] = WeakKeyDictionary()  # of runs, by kernels that show E2B's forms
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, owner: str, id_: str) -> E2BSandbox | None:
        """Return a sandbox of an owner; None if there is none. It blocks: for a thread."""
        state = self._state(owner, id_) if _ID.fullmatch(id_) else None
        with suppress(ContainersError):
            if state and (state.is_paused or state.ends > time.time()):
                row = self.containers.find(owner, id_)
                return E2BSandbox(row, state) if row.status == "active" else None
        return None

    def _state(self, owner: str, id_: str) -> E2BState | None:
        stored = self.rows.get(WireValue, f"e2b-{id_}", owner=owner)
        if stored is None:
            return None
        state = E2BState.model_validate_json(stored.value)
        state.is_paused |= state.auto_pause and state.ends <= time.time()  # also if no process was there to do it
        return state

    def all_of(self, owner: str) -> list[E2BSandbox]:
        """List an owner's sandboxes, newest first, and forget sandboxes that are gone. It blocks."""
        stored = [row for row in self.rows.find(WireValue, owner=owner) if row.id.startswith("e2b-")]
        found = []
        for each in stored:
            if box := self.find(owner, each.id.removeprefix("e2b-")):
                found.append(box)
            elif each.created_at < time.time() - SLOT_TIMEOUT:  # else it may be under way
                self.rows.delete(WireValue, id=each.id)
        return found[::-1]

    def put(self, box: E2BSandbox) -> None:
        """Store the state of a sandbox, and extend its container's life to match. It blocks."""
        self.rows.change(WireValue, f"e2b-{box.id}", value=box.state.model_dump_json())
        idle = self.idle_minutes(box.state)
        self.rows.change(ContainerRecord, box.id, idle_minutes=idle, last_active_at=time.time())

    def idle_minutes(self, state: E2BState) -> float:
        """Return after how many minutes without use the container of a sandbox expires."""
        left = 0.0 if state.is_paused else max(state.ends - time.time(), 0.0)
        paused = self.containers.config.user_container_idle if state.is_paused or state.auto_pause else 0.0
        return (left + paused) / 60 + 1

    def time(self, box: E2BSandbox) -> None:
        """End or pause a sandbox once its time is up."""
        self._forget_timer(box.id)
        if not box.state.is_paused:
            self._timers[box.id] = task = asyncio.create_task(self._end_in_time(box))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def ensure_timed(self, box: E2BSandbox) -> None:
        """As `time`, for a sandbox that another process may have timed."""
        if box.id not in self._timers:
            self.time(box)

    def _forget_timer(self, id_: str) -> None:
        if timer := self._timers.pop(id_, None):
            timer.cancel()

    async def _end_in_time(self, box: E2BSandbox) -> None:
        owner, id_ = box.place
        state: E2BState | None = box.state
        while state and not state.is_paused and (left := state.ends - time.time()) > 0:
            await asyncio.sleep(left)
            state = await self._state_now(owner, id_)  # another process may have changed it
        del self._timers[id_]  # so that nobody cancels the end
        if state and state.auto_pause:
            await self._close_opened(box.place)
        elif state and not state.is_paused:
            await self.end(owner, id_)

    async def _state_now(self, owner: str, id_: str) -> E2BState | None:
        """Return the state of a sandbox, once the store answers."""
        while True:
            with suppress(RowsAway):
                return await aside(self._state, owner, id_)
            await asyncio.sleep(self.retry_seconds)

    async def pause(self, box: E2BSandbox) -> None:
        """Pause a sandbox: files and variables stay; code, commands and contexts end."""
        self._forget_timer(box.id)
        box.state.is_paused = True
        await aside(self.put, box)
        await self._close_opened(box.place)

    async def end(self, owner: str, id_: str) -> None:
        """Delete a sandbox."""
        self._forget_timer(id_)
        await aside(self.containers.discard, owner, id_)
        await self._close_opened((owner, id_))
        await aside(lambda: self.rows.delete(WireValue, id=f"e2b-{id_}"))

    async def _close_opened(self, place: Place) -> None:
        for id_ in [id_ for id_, watcher in self.watchers.items() if watcher.place == place]:
            del self.watchers[id_]
        for run in [run for run, at in self.runs.items() if at == place]:
            await aside(run.cancel)
        await self.contexts.close(place)
        await self.commands.close(place)

    async def close(self) -> None:
        """End all open commands, watchers and kernels."""
        for id_ in list(self._timers):
            self._forget_timer(id_)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.contexts.close()
        finally:
            await self.commands.close()


class E2BRequest(WireRequest):
    """A request."""

    wire: E2BWire

    async def box(self, id_: str) -> E2BSandbox:
        """Return the sandbox of an id.

        Raises:
            HTTPException: 404, this owner has no sandbox of this id.
        """
        box = await aside(self.wire.find, self.owner, id_)
        if box is None:
            raise HTTPException(404, f"{_GONE}: {id_[:64]}")
        return box

    async def here(self, *, resumes: bool = True) -> E2BSandbox:
        """Return the running sandbox that the request is for; a paused one may be resumed for it.

        Raises:
            HTTPException: 502, it does not exist or is paused; 501, the request is for a port of the sandbox.
        """
        headers = self.request.headers
        named = _HOST.match(headers.get("host", ""))  # behind a proxy with a wildcard
        id_ = headers.get("e2b-sandbox-id") or (named[2] if named else "")
        port = headers.get("e2b-sandbox-port") or (named[1] if named else "")
        box = await aside(self.wire.find, self.owner, id_)
        if box and box.state.is_paused and box.state.auto_resume and resumes:
            await self.resume(box, 300)
        if box is None or box.state.is_paused:
            raise HTTPException(502, _GONE)
        if port not in PORTS:
            raise HTTPException(501, "Sandboxes are sealed: none of their ports can be reached from outside.")
        return box

    async def resume(self, box: E2BSandbox, seconds: float) -> None:
        """Resume a sandbox, or extend its time to at least `seconds` from now."""
        box.state.ends = max(time.time() + seconds, 0.0 if box.state.is_paused else box.state.ends)
        box.state.is_paused = False
        await aside(self.wire.put, box)
        self.wire.time(box)

    async def use(self, work: Callable[[Sandbox], T], box: E2BSandbox | None = None) -> T:
        """Run a short function on the sandbox of the request."""
        id_ = (box or await self.here()).id
        return await used(self.wire.containers, lambda: id_, work)


ROUTES = Routes(E2BRequest, read=message_of)
"""All routes of the wire, which the files of this folder add to."""
