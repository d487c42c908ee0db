"""The shell as a model sees it: commands in a container, beside the code interpreter."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from agent_tools.containers.told import contents, reach
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.tools.at_once import Together, run_at_once
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS, ShellCall, read_shell_call
from agent_tools.text import fence, fold_lines
from agent_tools.tools.base import Params, tool_errors
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandTool

_DESCRIPTION = (
    "Runs shell commands (bash) in a Linux container, and returns the stdout, stderr and exit code of each. The "
    "commands of one call run at the same time, each in a fresh shell in the working directory: join steps that depend "
    "on each other with && in one command. Files persist from call to call, and so do programs started with &; shell "
    "variables and changes of the directory do not. Files are in /mnt/data, also the working directory; to offer the "
    "user a file saved there, link it as [name](sandbox:/mnt/data/name). It has {contents} There is no terminal and no "
    "root. {network}"
)


class ContainerShell(CommandTool):
    """A `CommandTool` on a container."""

    def __init__(self, hold: Hold) -> None:
        config = hold.containers.config
        self.name = config.shell_name
        self.description = _DESCRIPTION.format(contents=contents(config), network=reach(hold.network))
        self.parameters = _parameters(config)
        self.hold = hold
        self._config = config
        self._cancelled: threading.Event | None = None
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> str:
        """Run commands to their end and return what a model is told."""
        answer: list[str] = []

        def running() -> Iterator[CommandNews]:
            answer.append((yield from self.run(params, threading.Event())))

        for _ in running():
            pass
        return answer[0]

    def run(self, params: Params, cancelled: threading.Event) -> Generator[CommandNews, None, str]:
        """Run the commands of a call at once, yield their news, and return what a model is told."""
        call = read_shell_call(params)
        together = self._together(call)
        interpreter = self.hold.interpreter()
        self._cancelled = mine = threading.Event()
        if cancelled.is_set():
            mine.set()
        with tool_errors():
            notes = [*(f"note: {note}" for note in call.notes), self._carry_files(interpreter)]
            with closing(run_at_once(interpreter.as_sandbox, together, mine)) as news:
                ends = yield from news
            notes += [told(ends), self._carry_files(interpreter)]
        return self.hold.take_note() + "\n\n".join(filter(None, notes))

    def cancel(self) -> None:
        """End the call that is under way."""
        if self._cancelled is not None:
            self._cancelled.set()
        if (interpreter := self.hold.held) and self._cancelled is not None:
            interpreter.as_sandbox.cancel(self._cancelled)

    def _together(self, call: ShellCall) -> Together:
        seconds = self._config.timeout if call.timeout_ms is None else call.timeout_ms / 1000
        most = self._config.max_shell_output
        characters = most if call.max_output_length is None else min(most, call.max_output_length)
        return Together(call.commands, min(seconds, self._config.max_shell_timeout), characters)

    def _carry_files(self, interpreter: CodeInterpreter) -> str:
        """Have a sandbox on another machine, with files of its own, take and give files, as every run of code does.

        Return what could not be carried, in words, '' as a rule.
        """
        containers = self.hold.containers
        if containers.runtime.guest(containers.folder(self.hold.container_id)).shares_files:
            return ""
        return interpreter.markdown(interpreter.run(""))


def told(ends: Sequence[CommandEnd]) -> str:
    """Return what a model is told of commands that have ended."""
    if len(ends) == 1:
        return _told(ends[0], "")
    return "\n\n".join(_told(end, f"command {end.index + 1}: ") for end in ends)


def _told(end: CommandEnd, head: str) -> str:
    printed = (("stdout", end.stdout), ("stderr", end.stderr))
    parts = [f"{name}:\n\n{fence(fold_lines(text).rstrip())}" for name, text in printed if text.strip()]
    return "\n\n".join([f"{head}{_ending(end)}", *(parts or ["(no output)"])])


def _ending(end: CommandEnd) -> str:
    if end.timed_out:
        return "timed out"
    return "cancelled" if end.was_cancelled else f"exit code {end.exit_code}"


def _parameters(config: GatewayConfig) -> dict[str, Any]:
    times = f"Milliseconds that each may run; {config.timeout * 1000:,.0f} unless given, {{}} at most."
    most = f"Characters kept of what each prints, the first and the last half; {config.max_shell_output:,} at most."
    return {
        "type": "object",
        "properties": {
            "commands": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MAX_COMMANDS,
                "description": "The commands.",
            },
            "timeout_ms": {"type": "integer", "description": times.format(f"{config.max_shell_timeout * 1000:,.0f}")},
            "max_output_length": {"type": "integer", "description": most},
        },
        "required": ["commands"],
        "additionalProperties": False,
    }
