"""The shell as a model sees it: commands in a container, beside the code interpreter."""

from __future__ import annotations

import json
import queue
import re
import shlex
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Union

from agent_tools.agents.turn.code_stream import WHOLE_CHARS
from agent_tools.code_reader import JsonReading, checked_code, read_json
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.tools.tool import ContainerLease, described
from agent_tools.limits import Limits
from agent_tools.results.commands import SIGNALLED
from agent_tools.results.execution import finished
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.text import fence, fold_lines
from agent_tools.tools.base import Params, tool_errors
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText, CommandTool, StreamName
from agent_tools.tools.output_text import OutputText, run_bounded

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
        interpreter = self.lease.interpreter()
        self._cancelled = mine = threading.Event()
        if cancelled.is_set():
            mine.set()
        with tool_errors():
            notes = [*(f"note: {note}" for note in call.notes), carry_files(self.lease, interpreter)]
            with closing(run_parallel(interpreter.as_sandbox, together, mine)) as news:
                ends = yield from news
            notes += [commands_text(ends), carry_files(self.lease, interpreter)]
        return self.lease.take_note() + "\n\n".join(filter(None, notes))

    def cancel(self) -> None:
        """End the running call."""
        if self._cancelled is not None:
            self._cancelled.set()
        if (interpreter := self.lease.used_interpreter) and self._cancelled is not None:
            interpreter.as_sandbox.cancel(self._cancelled)

    def _together(self, call: ShellCall) -> ParallelCommands:
        seconds = self._config.timeout if call.timeout_ms is None else call.timeout_ms / 1000
        characters = min(MAX_OUTPUT, MAX_OUTPUT if call.max_output_length is None else call.max_output_length)
        return ParallelCommands(call.commands, min(seconds, self._config.max_shell_timeout), characters)


def carry_files(lease: ContainerLease, interpreter: CodeInterpreter) -> str:
    """Copy files to and from a sandbox on another machine, as every run of code does.

    Return a sentence on files that could not be copied, '' as a rule.
    """
    if lease.containers.runtime.guest(lease.containers.folder(lease.container_id)).shares_files:
        return ""
    return interpreter.markdown(interpreter.run(""))


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


# A call of the shell as a model writes it: its commands and their limits. Pure.


MAX_COMMANDS = 16  # of one call; they run at once
_SHOWN = 'Give JSON such as {"commands": ["ls -l"]}.'


@dataclass(frozen=True)
class ShellCall:
    """The commands of a call. `timeout_ms` and `max_output_length` (characters) are None where the model set none.

    `notes` say how invalid escapes in its JSON were read.
    """

    commands: tuple[str, ...]
    timeout_ms: int | None = None
    max_output_length: int | None = None
    notes: tuple[str, ...] = ()


def read_shell_call(arguments: object) -> ShellCall:
    """Return the call in a model's arguments: `commands` as a list or one text, or `command`.

    Raises:
        InvalidParams: there are no commands in it, or they cannot be run.
    """
    try:
        reading = read_json(arguments, _is_sound) if isinstance(arguments, str) else JsonReading(arguments)
    except ValueError as exc:
        raise InvalidParams(f"The arguments are not JSON. {_SHOWN}") from exc
    given = reading.value
    if not isinstance(given, dict):
        raise InvalidParams(f"The arguments are no JSON object. {_SHOWN}")
    commands = _commands(given.get("commands", given.get("command")))
    checked_code("\n".join(commands), Limits())
    return ShellCall(commands, _number(given, "timeout_ms", 1), _number(given, "max_output_length", 0), reading.notes)


def _is_sound(given: Any) -> bool:
    """Return whether all quotes are closed in the commands."""
    try:
        for command in _commands(given.get("commands", given.get("command")) if isinstance(given, dict) else None):
            shlex.split(command)
    except ValueError:
        return False
    except InvalidParams:
        return True  # the call reports it later
    return True


def _commands(given: Any) -> tuple[str, ...]:
    commands = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else ()
    if not commands or not all(isinstance(each, str) for each in commands):
        raise InvalidParams(f"There are no commands. {_SHOWN}")
    if len(commands) > MAX_COMMANDS:
        raise InvalidParams(f"There are {len(commands):,} commands, more than {MAX_COMMANDS}: make several calls.")
    return commands


def _number(given: dict[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 2**53:
        raise InvalidParams(f"{name}={value!r:.40} is not usable: give a number from {least} on.")
    return int(value)


# Commands that run in parallel in one sandbox, and their output in order of arrival.


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


# The commands in a shell call's arguments, read while the model writes them.
#
# Arguments are a JSON object with a list of strings under `commands`. Tokens are read up to each string's quote, then
# the string's pieces are unescaped and passed on, but for half an escape at their end. Arguments of another form are
# read whole at the end of the call. The work is linear in the length of the arguments, however they are cut.


MAX_LEAD = 4_096  # characters before the first command; what comes later is not followed
_LEAD = re.compile(r'\s*\{(?:\s*"(?:timeout_ms|max_output_length)"\s*:\s*[\w.+-]+\s*,)*\s*"commands"\s*:\s*\[\s*"')
_NEXT = re.compile(r'\s*,\s*"')
_MAYBE_NEXT = re.compile(r"\s*,?\s*\Z")


@dataclass(frozen=True)
class CommandPiece:
    """A piece of the command at a place in the call."""

    index: int
    text: str


class CommandStream:
    """Takes the pieces of a call's arguments, and gives the pieces of the commands in them.

    The pieces of one command joined are always a beginning of it.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._index = -1  # of the command that is being read
        self._is_inside = False
        self._is_over = False

    def feed(self, text: str) -> Iterator[CommandPiece]:
        """Take a piece of the arguments, and yield what it adds to the commands."""
        if self._is_over:
            return
        self._pending += text
        while self._is_inside or self._opens():
            piece = self._inside()
            if piece:
                yield CommandPiece(self._index, piece)
            if self._is_inside:
                return

    def _opens(self) -> bool:
        """Read up to the quote that opens the next command; return False while it has not come."""
        if self._is_over:
            return False
        found = (_NEXT if self._index >= 0 else _LEAD).match(self._pending)
        if found is None:
            could_come = _MAYBE_NEXT.match(self._pending) if self._index >= 0 else len(self._pending) < MAX_LEAD
            self._is_over = not could_come or len(self._pending) > MAX_LEAD
            return False
        self._pending = self._pending[found.end() :]
        self._index += 1
        self._is_inside = self._index < MAX_COMMANDS
        self._is_over = not self._is_inside
        return self._is_inside

    def _inside(self) -> str:
        """Read of the command what has come; it may end here."""
        end = WHOLE_CHARS.match(self._pending).end()  # type: ignore[union-attr]
        piece, self._pending = self._pending[:end], self._pending[end:]
        if self._pending.startswith('"'):
            self._is_inside, self._pending = False, self._pending[1:]
        try:
            return str(json.loads(f'"{piece}"', strict=False))
        except ValueError:  # not JSON after all
            self._is_inside, self._is_over = False, True
            return ""
