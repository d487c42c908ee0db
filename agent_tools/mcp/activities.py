"""Runs in containers, which may outlive the call that began them: later calls wait for them, cancelling ends them.

Theory of operation
    A call begins an activity, which a task of the server runs in a thread, and waits for `answer_within` seconds. If it
    is not over by then, the call is answered with the output so far, and `wait` finds the activity by its container.
    Each container has at most one run of code, and one command beside it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import NoSandbox
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.handles import Handles
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Execution, Output, Stream
from agent_tools.runtime.kernel.settling import Settling
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.command_tool import StreamName
from agent_tools.tools.output_text import OutputText, run_bounded

# An activity: one run of code or of a command, in a thread of its own, which may outlive the call that began it.
#
# Outputs are collected as they come; each answer returns the outputs that are new since the last one.


Prepare = Callable[[Callable[[str], None]], object]
"""Prepares what every container needs, such as the image, and reports progress in lines."""
QUEUED = "waiting for a sandbox"
PATIENCE = 60.0  # seconds of that
TAIL = 500  # characters of the last output that progress shows


@dataclass(frozen=True)
class ActivityPlace:
    """The container of an activity, and its preparation."""

    containers: Containers[Any]
    handles: Handles
    prepare: Prepare
    owner: str
    container: str

    @contextmanager
    def sandbox(self, told: Callable[[str], None]) -> Iterator[tuple[Sandbox, str]]:
        """Lease the sandbox, ready, with the note on its variables for the model, '' as a rule.

        Raises:
            AgentToolsError: there is no such container, or no sandbox for it.
        """
        self.prepare(told)
        self.handles.ensure(self.owner, self.container)
        with self.containers.acquire(self.container, PATIENCE) as (interpreter, woken):
            sandbox, note = interpreter.as_sandbox, woken.result()
            if sandbox.container is None:
                told("starting the container")
                sandbox.start()
            yield sandbox, note


class Activity(ABC):
    """A run in a container. `run` is for one thread, all other methods for any.

    Attributes:
        source: the code or the command.
        failure: why it could not be run, once that is known.
        stage: the reason for its wait before it runs, '' afterwards.
        attendants: the calls that wait for it and will report it.
        is_shown: the page for answers has its outputs.
    """

    def __init__(self, place: ActivityPlace, source: str) -> None:
        self.place = place
        self.source = source
        self.failure: Exception | None = None
        self.attendants = 0
        self.is_shown = False
        self.note = ""
        self.was_cancelled = False
        self._lock = threading.Lock()
        self._began = monotonic()
        self._ended: float | None = None
        self._cancelled = threading.Event()
        self._sandbox: Sandbox | None = None
        self.stage = QUEUED
        self._tail = ""

    def run(self) -> None:
        """Do it, to its end."""
        try:
            with self.place.sandbox(self._at) as (sandbox, note):
                self._sandbox, self.note, self.stage = sandbox, note, ""
                if not self._cancelled.is_set():
                    self._work(sandbox, self._cancelled)
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a thread: the next question gets it)
            self.failure = exc
        finally:
            self._sandbox, self._ended = None, monotonic()

    @abstractmethod
    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        """Run it in the leased sandbox; setting `cancelled`, and `sandbox.cancel`, end it."""

    @property
    def is_over(self) -> bool:
        """It has come to its end."""
        return self._ended is not None

    @property
    def seconds(self) -> float:
        """The time since it began, up to its end."""
        return (self._ended or monotonic()) - self._began

    @property
    def progress(self) -> str:
        """The progress for people: the end of its output, or the reason for its wait."""
        news = self.news
        return news if news not in ("", QUEUED) else f"{news or 'running'} for {self.seconds:.0f} s"

    @property
    def news(self) -> str:
        """A text that changes with every new progress."""
        return self.stage or self._tail

    def cancel(self) -> None:
        """End it; variables stay."""
        self.was_cancelled = True
        self._cancelled.set()
        if sandbox := self._sandbox:
            sandbox.cancel(self._cancelled)

    def _at(self, line: str) -> None:
        self.stage = line[:TAIL]


class CodeActivity(Activity):
    """A run of Python; `execution` is its result, once it has ended."""

    def __init__(self, place: ActivityPlace, code: str, timeout: float) -> None:
        super().__init__(place, code)
        self._timeout = timeout
        self._new = Settling()
        self.execution: Execution | None = None

    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        self.execution = sandbox.run_code(self.source, timeout=self._timeout, on_output=self._add, cancelled=cancelled)

    def _add(self, output: Output) -> None:
        with self._lock:
            self._new.add(output)
            if isinstance(output, Stream):
                self._tail = (self._tail + output.text)[-TAIL:]

    def take(self) -> tuple[tuple[Output, ...], Execution | None]:
        """Return the new, settled outputs, and the whole execution once it has ended."""
        with self._lock:
            new, self._new = self._new, Settling()
        return new.outputs, self.execution


class CommandActivity(Activity):
    """A run of a command of the shell. `most` are the characters that are kept of what it prints.

    `result` is there once it has ended.
    """

    def __init__(self, place: ActivityPlace, command: str, timeout: float, most: int) -> None:
        super().__init__(place, command)
        self._timeout = timeout
        self._output = OutputText(most)
        self._new: dict[StreamName, str] = {"stdout": "", "stderr": ""}
        self.result: CommandResult | None = None

    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        self.result = run_bounded(sandbox, self.source, self._output, self._add, self._timeout, cancelled)

    def _add(self, stream: StreamName, text: str) -> None:
        with self._lock:
            self._new[stream] += text
            self._tail = (self._tail + text)[-TAIL:]

    @property
    def texts(self) -> dict[StreamName, str]:
        """The stored part of its output."""
        with self._lock:
            return {"stdout": self._output.text("stdout"), "stderr": self._output.text("stderr")}

    def take(self) -> tuple[str, str, CommandResult | None]:
        """Return the new text of both streams, and the result once it has ended."""
        with self._lock:
            new, self._new = self._new, {"stdout": "", "stderr": ""}
        return new["stdout"], new["stderr"], self.result


Kind = Literal["code", "command"]
Key = tuple[str, str, Kind]
"""The owner, the container, and the kind of activity."""
Report = Callable[[float, str], Awaitable[None]]
"""Sends progress: seconds since the beginning, and a message for people."""
SOON = 0.2  # seconds in which most calls are over, without progress
PROGRESS_SECONDS = 0.2  # between two notifications of progress
MAX_UNREAD = 8  # runs of one key that ended and whose rest no call has asked for; the oldest is forgotten first


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
        unread = [key for key, (each, _) in self._known.items() if each.is_over and key[0] == owner]
        for key in unread[:-MAX_UNREAD]:
            del self._known[key]

    async def attend(self, activity: Activity, within: float, report: Report) -> None:
        """Wait for the end of an activity, up to a time in seconds. Cancelling the wait ends the activity."""
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
        """Wait until an earlier activity is over, up to a time in seconds; return True if another call will report it.

        Raises:
            TimeoutError: it is still running.
        """
        if over := self._end_of(activity):
            with anyio.fail_after(within):
                await over.wait()
        return not activity.attendants and self._end_of(activity) is not None

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
