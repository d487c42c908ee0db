"""The shell as a model sees it: commands in a container, beside the code interpreter."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.parallel_commands import ParallelCommands, run_parallel
from agent_tools.gateway.tools.shell_call import MAX_COMMANDS, ShellCall, read_shell_call
from agent_tools.gateway.tools.tool import described
from agent_tools.results.execution import finished
from agent_tools.text import fence, fold_lines
from agent_tools.tools.base import Params, tool_errors
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandTool
from agent_tools.tools.tool_sandbox import ToolSandbox

MAX_OUTPUT = 40_000  # characters of what one command prints: the first and the last half
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

    def __init__(self, lease: ContainerLease) -> None:
        config = lease.containers.config
        self.name = config.shell_name
        self.description = described(lease, _DESCRIPTION)
        self.parameters = _parameters(config)
        self.lease = lease
        self._config = config
        self._cancelled: threading.Event | None = None
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> str:
        """Run commands to their end and return the answer for the model."""
        return finished(self.run(params, threading.Event()))

    def run(self, params: Params, cancelled: threading.Event) -> Generator[CommandNews, None, str]:
        """Run the commands of a call in parallel, yield their output, and return the answer for the model."""
        call = read_shell_call(params)
        together = self._together(call)
        sandbox = self.lease.sandbox()
        self._cancelled = mine = threading.Event()
        if cancelled.is_set():
            mine.set()
        with tool_errors():
            notes = [*(f"note: {note}" for note in call.notes), carry_files(self.lease, sandbox)]
            with closing(run_parallel(sandbox, together, mine)) as news:
                ends = yield from news
            notes += [commands_text(ends), carry_files(self.lease, sandbox)]
        return self.lease.take_note() + "\n\n".join(filter(None, notes))

    def cancel(self) -> None:
        """End the running call."""
        if self._cancelled is not None:
            self._cancelled.set()
        if (sandbox := self.lease.used_sandbox) and self._cancelled is not None:
            sandbox.cancel(self._cancelled)

    def _together(self, call: ShellCall) -> ParallelCommands:
        seconds = self._config.timeout if call.timeout_ms is None else call.timeout_ms / 1000
        characters = min(MAX_OUTPUT, MAX_OUTPUT if call.max_output_length is None else call.max_output_length)
        return ParallelCommands(call.commands, min(seconds, self._config.max_shell_timeout), characters)


def carry_files(lease: ContainerLease, sandbox: ToolSandbox) -> str:
    """Copy files to and from a sandbox on another machine, as every run of code does.

    Return a sentence on files that could not be copied, '' as a rule.
    """
    if lease.containers.runtime.guest(lease.containers.folder(lease.container_id)).shares_files:
        return ""
    return sandbox.markdown(sandbox.run_code(""))


def commands_text(ends: Sequence[CommandEnd]) -> str:
    """Return the answer for the model on commands that have ended."""
    if len(ends) == 1:
        return _command_text(ends[0], "")
    return "\n\n".join(_command_text(end, f"command {end.index + 1}: ") for end in ends)


def _command_text(end: CommandEnd, head: str) -> str:
    printed = (("stdout", end.stdout), ("stderr", end.stderr))
    parts = [f"{name}:\n\n{fence(fold_lines(text).rstrip())}" for name, text in printed if text.strip()]
    return "\n\n".join([f"{head}{_ending(end)}", *(parts or ["(no output)"])])


def _ending(end: CommandEnd) -> str:
    if end.timed_out:
        return "timed out"
    return "cancelled" if end.was_cancelled else f"exit code {end.exit_code}"


def _parameters(config: GatewayConfig) -> dict[str, Any]:
    times = f"Milliseconds that each may run; {config.timeout * 1000:,.0f} unless given, {{}} at most."
    most = f"Characters kept of what each prints, the first and the last half; {MAX_OUTPUT:,} at most."
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
