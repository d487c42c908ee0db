"""Commands that run in parallel in one sandbox, and their output in order of arrival."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Union

from agent_tools.results.commands import SIGNALLED
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText, StreamName
from agent_tools.tools.output_text import OutputText, run_bounded

_Queue = queue.SimpleQueue[Union[CommandText, CommandEnd, BaseException]]


@dataclass(frozen=True)
class ParallelCommands:
    """Commands for the shell, each with the same limits: seconds, and characters of its output."""

    commands: tuple[str, ...]
    timeout: float
    max_output: int


def run_parallel(
    sandbox: Sandbox, together: ParallelCommands, cancelled: threading.Event
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
                pool.submit(_run, sandbox, together, index, cancelled, news)
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


def _run(sandbox: Sandbox, together: ParallelCommands, index: int, cancelled: threading.Event, news: _Queue) -> None:
    """Run one of the commands. For a thread of its own; a failure is for the reader of the news."""

    def tell(stream: StreamName, text: str) -> None:
        if text:
            news.put(CommandText(index, stream, text))

    if cancelled.is_set():
        news.put(CommandEnd(index, SIGNALLED + signal.SIGKILL, was_cancelled=True))
        return
    output = OutputText(together.max_output)
    try:
        result = run_bounded(sandbox, together.commands[index], output, tell, together.timeout, cancelled)
        texts = (output.text("stdout"), output.text("stderr"))
        news.put(CommandEnd(index, result.exit_code, *texts, result.timed_out, cancelled.is_set()))
    except BaseException as exc:  # noqa: BLE001  (the reader of the news raises it again)
        news.put(exc)
