"""An activity: one run of code or of a command, in a thread of its own, which may outlive the call that began it.

Outputs are collected as they come; each answer returns the outputs that are new since the last one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from agent_tools.containers.containers import Containers
from agent_tools.mcp.handles import Handles
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Execution, Output, Stream
from agent_tools.runtime.kernel.settling import Settling
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.command_tool import StreamName
from agent_tools.tools.output_text import OutputText, run_bounded

Prepare = Callable[[Callable[[str], None]], object]
"""Prepares what every container needs, such as the image, and reports progress in lines."""
QUEUED = "waiting for a sandbox"
SLOT_TIMEOUT = 60.0  # seconds of that
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
        with self.containers.acquire(self.container, SLOT_TIMEOUT) as (sandbox, woken):
            note = woken.result()
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
        followers: the calls that wait for it and will report it.
        is_shown: the page for answers has its outputs.
    """

    def __init__(self, place: ActivityPlace, source: str) -> None:
        self.place = place
        self.source = source
        self.failure: Exception | None = None
        self.followers = 0
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

    def take_new(self) -> tuple[tuple[Output, ...], Execution | None]:
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

    def take_new(self) -> tuple[str, str, CommandResult | None]:
        """Return the new text of both streams, and the result once it has ended."""
        with self._lock:
            new, self._new = self._new, {"stdout": "", "stderr": ""}
        return new["stdout"], new["stderr"], self.result
