"""The items of a shell call: the commands, and what came of them. Pure.

The order of events and their fields are those that the hosted tool sends: the call is done once it is written, and its
output is an item of its own.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.agents.turn.code_stream import WHOLE_CHARS
from agent_tools.containers.records import new_id
from agent_tools.errors import InvalidParams
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.tools.shell import MAX_COMMANDS, ShellCall, read_shell_call
from agent_tools.models.base import JsonObject
from agent_tools.results.command import NOT_EXECUTABLE
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText

_COMMAND = "response.shell_call_command"
_CONTENT = "response.shell_call_output_content"


class ShellCallItem(Item):
    """A call of the shell; `environment` says where it runs."""

    def __init__(self, call_id: str, environment: Mapping[str, str]) -> None:
        action: JsonObject = {"commands": [], "max_output_length": None, "timeout_ms": None}
        value = {"id": new_id("sh"), "type": "shell_call", "status": "in_progress", "action": action}
        super().__init__({**value, "call_id": call_id, "environment": dict(environment)})
        self._stream = CommandStream()
        self._pieces: list[list[str]] = []  # of each command, as they came

    def write(self, arguments: str) -> Iterator[Event]:
        """Append to the arguments."""
        for piece in self._stream.feed(arguments):
            yield from self._until(piece.index)
            self._pieces[piece.index].append(piece.text)
            yield self._told("delta", piece.index, delta=piece.text)

    def written(self, arguments: str) -> Iterator[Event]:
        """Set the whole arguments. Without commands in them the call is incomplete."""
        call = _call_in(arguments)
        if call is None:
            yield from self.done("incomplete")
            return
        yield from self._until(len(call.commands) - 1)
        for index, command in enumerate(call.commands):
            sent = "".join(self._pieces[index])
            if command != sent and command.startswith(sent):
                yield self._told("delta", index, delta=command[len(sent) :])
            yield self._told("done", index, command=command)
        self._pieces = [[command] for command in call.commands]
        self.value["action"].update(max_output_length=call.max_output_length, timeout_ms=call.timeout_ms)
        yield from self.done()

    @property
    def max_output_length(self) -> int | None:
        """The limit that the model set on the output, in characters."""
        length: int | None = self.value["action"]["max_output_length"]
        return length

    def _until(self, index: int) -> Iterator[Event]:
        """Add the commands up to a place."""
        while len(self._pieces) <= index:
            self._pieces.append([])
            yield self._told("added", len(self._pieces) - 1, command="")

    def _closing(self) -> Iterator[Event]:
        self.value["action"]["commands"] = ["".join(pieces) for pieces in self._pieces]
        return iter(())

    def _told(self, kind: str, index: int, **fields: Any) -> Event:
        return {"type": f"{_COMMAND}.{kind}", "command_index": index, **fields}


class ShellOutputItem(Item):
    """The outcome of a call's commands."""

    def __init__(self, call: ShellCallItem) -> None:
        value = {"id": new_id("sho"), "type": "shell_call_output", "status": "in_progress", "output": []}
        call_id = call.value["call_id"]
        super().__init__({**value, "call_id": call_id, "max_output_length": call.max_output_length})
        self._number = len(call.value["action"]["commands"])
        self._printed: dict[int, dict[str, str]] = defaultdict(lambda: {"stdout": "", "stderr": ""})
        self._ended: dict[int, JsonObject] = {}
        self._was_cancelled = False

    def take(self, news: CommandNews) -> Iterator[Event]:
        """Take in what a command printed, or how it ended."""
        match news:
            case CommandText(index, stream, text):
                self._printed[index][stream] += text
                yield self._event(f"{_CONTENT}.delta", command_index=index, delta={stream: text})
            case CommandEnd(index, exit_code):
                outcome = {"type": "timeout"} if news.timed_out else {"type": "exit", "exit_code": exit_code}
                self._was_cancelled |= news.was_cancelled
                yield self._end(index, outcome)

    def ran(self) -> Iterator[Event]:
        """Note that the call is over."""
        yield from self.done("incomplete" if self._was_cancelled else "completed")

    def failed(self, why: str) -> Iterator[Event]:
        """Note that the call failed: its commands that have not ended say why."""
        for index in range(max(1, self._number)):
            if index not in self._ended:
                yield from self.take(CommandText(index, "stderr", why))
                yield self._end(index, {"type": "exit", "exit_code": NOT_EXECUTABLE})
        yield from self.done("incomplete")

    def _end(self, index: int, outcome: JsonObject) -> Event:
        self._ended[index] = output = {"outcome": outcome, **self._printed.pop(index, {"stdout": "", "stderr": ""})}
        self.value["output"] = [self._ended[each] for each in sorted(self._ended)]
        return self._event(f"{_CONTENT}.done", command_index=index, output=[output])


def _call_in(arguments: str) -> ShellCall | None:
    try:
        return read_shell_call(arguments)
    except InvalidParams:
        return None


# The commands in a shell call's arguments, read while the model writes them.
#
# Arguments are a JSON object with a list of strings under `commands`. Tokens are read up to each string's quote, then
# the
# string's pieces are unescaped and passed on, but for half an escape at their end. What has another form is left to
# the
# end of the call, when it is read whole. The work is linear in the length of the arguments, however they are cut.


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
