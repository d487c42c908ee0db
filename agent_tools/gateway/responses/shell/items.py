"""The items of a shell call: the commands, and what came of them. Pure.

The order of events and their fields are those that the hosted tool sends: the call is done once it is written, and its
output is an item of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from agent_tools.command import NOT_EXECUTABLE
from agent_tools.containers.ids import new_id
from agent_tools.errors import InvalidParams
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.responses.shell.command_stream import CommandStream
from agent_tools.gateway.tools.shell_call import ShellCall, read_shell_call
from agent_tools.models.base import JsonObject
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
