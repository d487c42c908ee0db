"""Commands that run beside each other in one sandbox, and their news in the order in which it comes."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Union

from agent_tools.command import SIGNALLED, CommandResult
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.command_output import CommandOutput
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText, StreamName

_Queue = queue.SimpleQueue[Union[CommandText, CommandEnd, BaseException]]


@dataclass(frozen=True)
class Together:
    """Commands for the shell, each with the same limits: seconds, and characters of its output."""

    commands: tuple[str, ...]
    timeout: float
    max_output: int


def run_at_once(
    sandbox: Sandbox, together: Together, cancelled: threading.Event
) -> Generator[CommandNews, None, tuple[CommandEnd, ...]]:
    """Run commands at once, each in a shell of its own; yield their news, return how each ended, in their order.

    Setting `cancelled`, and then `sandbox.cancel` with it, ends them; so does closing the generator.

    Raises:
        AgentToolsError: they could not be run, or the sandbox ended.
    """
    news: _Queue = queue.SimpleQueue()  # bounded by what the outputs give: `max_output` for each command
    ends: dict[int, CommandEnd] = {}
    with ThreadPoolExecutor(len(together.commands), "gateway-shell") as pool:
        try:
            for index in range(len(together.commands)):
                pool.submit(_Run(sandbox, together, index, cancelled, news))
            while len(ends) < len(together.commands):
                each = news.get()
                if isinstance(each, BaseException):
                    raise each
                if isinstance(each, CommandEnd):
                    ends[each.index] = each
                yield each
        finally:
            if len(ends) < len(together.commands):
                sandbox.cancel(cancelled)
    return tuple(ends[index] for index in sorted(ends))


@dataclass(frozen=True)
class _Run:
    """One of them, for a thread of its own."""

    sandbox: Sandbox
    together: Together
    index: int
    cancelled: threading.Event
    news: _Queue

    def __call__(self) -> None:
        if self.cancelled.is_set():
            self.news.put(CommandEnd(self.index, SIGNALLED + signal.SIGKILL, was_cancelled=True))
            return
        output = CommandOutput(self.together.max_output)
        try:
            result = self.sandbox.run_command(
                self.together.commands[self.index],
                timeout=self.together.timeout,
                max_output=1,  # it is kept here
                on_output=partial(self._printed, output),
                cancelled=self.cancelled,
            )
            self._ended(output, result)
        except BaseException as exc:  # noqa: BLE001  (raised again by whoever reads the news)
            self.news.put(exc)

    def _printed(self, output: CommandOutput, stream: StreamName, data: bytes) -> None:
        self._tell(stream, output.add(stream, data))

    def _ended(self, output: CommandOutput, result: CommandResult) -> None:
        self._tell("stdout", output.finish("stdout"))
        self._tell("stderr", output.finish("stderr", f"{result.reason}\n" if result.reason else ""))
        texts = (output.text("stdout"), output.text("stderr"))
        self.news.put(CommandEnd(self.index, result.exit_code, *texts, result.timed_out, self.cancelled.is_set()))

    def _tell(self, stream: StreamName, text: str) -> None:
        if text:
            self.news.put(CommandText(self.index, stream, text))
