"""An activity: one run of code or of a command, in a thread of its own, which may outlive the call that began it.

Outputs are collected as they come; each answer takes what no answer before has told.
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
from agent_tools.results.command import CommandResult
from agent_tools.results.execution import Execution, Output, Stream
from agent_tools.runtime.kernel.budget import Settling
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.command_output import OutputText
from agent_tools.tools.command_tool import StreamName

Prepare = Callable[[Callable[[str], None]], object]
"""Has what every container needs made, such as the image, and tells of it in lines."""
TAIL = 500  # characters of the last output that progress shows


@dataclass(frozen=True)
class ActivityPlace:
    """The container that an activity is in, and what it needs before."""

    containers: Containers[Any]
    handles: Handles
    prepare: Prepare
    owner: str
    container: str

    @contextmanager
    def sandbox(self, told: Callable[[str], None]) -> Iterator[tuple[Sandbox, str]]:
        """Hold the sandbox, ready; with what a model is told of its variables, '' as a rule.

        Raises:
            AgentToolsError: there is no such container, or no sandbox for it.
        """
        self.prepare(told)
        self.handles.ensure(self.owner, self.container)
        with self.containers.held(self.container) as (interpreter, woken):
            sandbox, note = interpreter.as_sandbox, woken.result()
            if sandbox.container is None:
                told("starting the container")
                sandbox.start()
            yield sandbox, note


class Activity(ABC):
    """Work that is under way in a container. `run` is for a thread, the rest for any.

    Attributes:
        failure: why the house could not do it, once that is known.
        attendants: calls that wait for it, and will tell of it.
    """

    def __init__(self, place: ActivityPlace) -> None:
        self.place = place
        self.failure: Exception | None = None
        self.attendants = 0
        self.note = ""
        self.was_cancelled = False
        self._lock = threading.Lock()
        self._began = monotonic()
        self._ended: float | None = None
        self._cancelled = threading.Event()
        self._sandbox: Sandbox | None = None
        self._stage = "waiting for a sandbox"
        self._tail = ""

    def run(self) -> None:
        """Do it, to its end."""
        try:
            with self.place.sandbox(self._at) as (sandbox, note):
                self._sandbox, self.note, self._stage = sandbox, note, ""
                if not self._cancelled.is_set():
                    self._work(sandbox, self._cancelled)
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a thread: whoever asks is told)
            self.failure = exc
        finally:
            self._sandbox, self._ended = None, monotonic()

    @abstractmethod
    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        """Do it in the sandbox that is held, which setting `cancelled` and `sandbox.cancel` ends."""

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
        """The text that a person is shown of it: the end of its output, or what it waits for."""
        return self._stage or self._tail or f"running for {self.seconds:.0f} s"

    @property
    def news(self) -> str:
        """A text that changes whenever there is something new to show."""
        return self._stage or self._tail

    @property
    def stage(self) -> str:
        """A clause of what it waits for before it runs, '' from then on."""
        return self._stage

    def cancel(self) -> None:
        """End it; variables stay."""
        self.was_cancelled = True
        self._cancelled.set()
        if sandbox := self._sandbox:
            sandbox.cancel(self._cancelled)

    def _at(self, line: str) -> None:
        self._stage = line[:TAIL]


class CodeActivity(Activity):
    """A run of Python."""

    def __init__(self, place: ActivityPlace, code: str, timeout: float) -> None:
        super().__init__(place)
        self._code = code
        self._timeout = timeout
        self._new = Settling()
        self._execution: Execution | None = None

    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        self._execution = sandbox.run_code(self._code, timeout=self._timeout, on_output=self._add, cancelled=cancelled)

    def _add(self, output: Output) -> None:
        with self._lock:
            self._new.add(output)
            if isinstance(output, Stream):
                self._tail = (self._tail + output.text)[-TAIL:]

    def take(self) -> tuple[tuple[Output, ...], Execution | None]:
        """Return the outputs that were not taken yet, settled, and the whole once it is there."""
        with self._lock:
            new, self._new = self._new, Settling()
        return new.outputs, self._execution


class CommandActivity(Activity):
    """A run of a command of the shell. `most` are the characters that are kept of what it prints."""

    def __init__(self, place: ActivityPlace, command: str, timeout: float, most: int) -> None:
        super().__init__(place)
        self._command = command
        self._timeout = timeout
        self._output = OutputText(most)
        self._new: dict[StreamName, str] = {"stdout": "", "stderr": ""}
        self._result: CommandResult | None = None

    def _work(self, sandbox: Sandbox, cancelled: threading.Event) -> None:
        result = sandbox.run_command(
            self._command,
            timeout=self._timeout,
            max_output=1,  # it is kept here
            on_output=lambda stream, data: self._add(stream, self._output.add(stream, data)),
            cancelled=cancelled,
        )
        self._add("stdout", self._output.finish("stdout"))
        self._add("stderr", self._output.finish("stderr", f"{result.reason}\n" if result.reason else ""))
        self._result = result

    def _add(self, stream: StreamName, text: str) -> None:
        with self._lock:
            self._new[stream] += text
            self._tail = (self._tail + text)[-TAIL:]

    def take(self) -> tuple[str, str, CommandResult | None]:
        """Return the text of both streams that was not taken yet, and the result once it is there."""
        with self._lock:
            new, self._new = self._new, {"stdout": "", "stderr": ""}
        return new["stdout"], new["stderr"], self._result
