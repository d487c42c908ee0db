"""Calls of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from agent_tools.agents.steps import CallDelta, CallDone, CallReady
from agent_tools.bodies.json_body import BodyRefused, parsed_text
from agent_tools.errors import InvalidParams
from agent_tools.gateway.remote_mcp.remote_server import RemoteFailure
from agent_tools.gateway.responses.client_tools import ClientTool, text_of_arguments
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.tools.patch import UPDATE, PatchCall, read_patch_call
from agent_tools.gateway.tools.shell_call import ShellCall, read_shell_call
from agent_tools.gateway.tools.shell_call_stream import CommandStream
from agent_tools.growing_text import GrowingText
from agent_tools.models.base import JsonObject
from agent_tools.results.commands import NOT_EXECUTABLE
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText


class CallItem(Item):
    """A call. Its arguments have events while they are written if `arguments_events` names them."""

    arguments_events: ClassVar[str] = ""
    text_field: ClassVar[str] = "arguments"  # what the model writes

    def __init__(self, prefix: str, kind: str, **fields: Any) -> None:
        super().__init__(prefix, kind, **fields)
        self._begun = GrowingText()  # of `text_field`, while it is not whole

    def write(self, delta: CallDelta) -> Iterator[Event]:
        """Append to the arguments."""
        if self.arguments_events and delta.arguments:
            self._begun.append(delta.arguments)
            yield self._event(f"{self.arguments_events}.delta", delta=delta.arguments)

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole arguments."""
        self._begun = GrowingText()
        self.value["arguments"] = ready.call.arguments
        if self.arguments_events:
            yield self._event(f"{self.arguments_events}.done", arguments=ready.call.arguments)

    def _closing(self) -> Iterator[Event]:
        if self._begun:  # and not written to its end
            self.value[self.text_field] = str(self._begun)
        return iter(())


class FunctionItem(CallItem):
    """A call of a function of the client's."""

    arguments_events = "response.function_call_arguments"

    def __init__(self, call_id: str, tool: ClientTool) -> None:
        super().__init__("fc", "function_call", status="in_progress", call_id=call_id, **tool.own_names, arguments="")

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole arguments, with which the call is done."""
        for event in super().written(ready):
            yield {**event, "name": self.value["name"]}  # types of the openai package need it in versions 2 alone
        yield from self.done()


class CustomItem(CallItem):
    """A call of a custom tool. Its input is shown once it is whole: until then it is JSON of ours. It has no status."""

    def __init__(self, call_id: str, tool: ClientTool) -> None:
        super().__init__("ctc", "custom_tool_call", call_id=call_id, **tool.own_names, input="")

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole input, with which the call is done."""
        text = self.value["input"] = text_of_arguments(ready.call.arguments)
        if text:
            yield self._event("response.custom_tool_call_input.delta", delta=text)
        yield self._event("response.custom_tool_call_input.done", input=text)
        yield from self.done()


class ToolSearchItem(CallItem):
    """A call of the client's search for tools. It has no events but those of every item."""

    def __init__(self, call_id: str, _tool: ClientTool) -> None:
        super().__init__(
            "tsc", "tool_search_call", status="in_progress", call_id=call_id, execution="client", arguments={}
        )

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole arguments, with which the call is done."""
        with suppress(BodyRefused):  # else none
            self.value["arguments"] = parsed_text(ready.call.arguments)
        yield from self.done()


class McpApprovalItem(CallItem):
    """A call that a person must approve. It is shown once its arguments are complete."""

    def __init__(self, label: str, name: str) -> None:
        super().__init__("mcpr", "mcp_approval_request", server_label=label, name=name, arguments="")

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole arguments, with which the request is done."""
        yield from super().written(ready)
        yield from self.done()


class McpCallItem(CallItem):
    """A call of a server's tool; `request_id` is the id of its approval request, if there was one."""

    begins_with = "response.mcp_call.in_progress"
    arguments_events = "response.mcp_call_arguments"

    def __init__(self, label: str, name: str, request_id: str | None = None) -> None:
        named = {"server_label": label, "name": name, "arguments": "", "status": "in_progress"}
        super().__init__("mcp", "mcp_call", **named, output=None, error=None, approval_request_id=request_id)

    def ended(self, text: str, failure: Exception | None = None) -> Iterator[Event]:
        """Set the tool's result, or the reason for which it returned nothing."""
        if failure:
            self.value["error"] = (failure if isinstance(failure, RemoteFailure) else RemoteFailure(text)).shown
        else:
            self.value["output"] = text
        yield self._event(f"response.mcp_call.{'failed' if failure else 'completed'}")
        yield from self.done("failed" if failure else "completed")


class McpListItem(Item):
    """The tools of an MCP server."""

    begins_with = "response.mcp_list_tools.in_progress"

    def __init__(self, label: str) -> None:
        super().__init__("mcpl", "mcp_list_tools", server_label=label, tools=[])

    def listed(self, tools: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """Set the tools that are offered, as MCP lists them."""
        for tool in tools:
            shown = {name: tool.get(name) for name in ("name", "description", "annotations")}
            self.value["tools"].append({**shown, "input_schema": tool.get("inputSchema") or {}})
        yield self._event("response.mcp_list_tools.completed")
        yield from self.done()

    def failed(self, message: str) -> Iterator[Event]:
        """Set the reason for which there are none."""
        self.value["error"] = message
        yield self._event("response.mcp_list_tools.failed")
        yield from self.done()


class CodeItem(CallItem):
    """A call of the code interpreter. With `shows_outputs`, its outputs are in the response."""

    begins_with = "response.code_interpreter_call.in_progress"
    text_field = "code"

    def __init__(self, container_id: str, shows_outputs: bool) -> None:
        place: JsonObject = {"container_id": container_id, "outputs": [] if shows_outputs else None}
        super().__init__("ci", "code_interpreter_call", status="in_progress", code="", **place)
        self._is_running = False

    def write(self, delta: CallDelta) -> Iterator[Event]:
        """Append to the code."""
        if delta.code:
            self._begun.append(delta.code)
            yield self._event("response.code_interpreter_call_code.delta", delta=delta.code)

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole code, if the model's arguments hold code."""
        self._is_running = ready.code is not None
        self.value["code"] = str(self._begun) if ready.code is None else ready.code
        self._begun = GrowingText()
        yield self._event("response.code_interpreter_call_code.done", code=self.value["code"])

    def running(self) -> Iterator[Event]:
        """Note that the code is run."""
        if self._is_running:
            self.value["status"] = "interpreting"
            yield self._event("response.code_interpreter_call.interpreting")

    def live(self, outputs: Iterable[JsonObject]) -> Iterator[Event]:
        """Yield an event for each output while the code runs; OpenAI has none for them."""
        for output in outputs:
            yield self._event("agent_tools.output", output=output)

    def ended(self, status: str, outputs: list[JsonObject]) -> Iterator[Event]:
        """Set the outputs of code that has ended, or was not run."""
        if self.value["outputs"] is not None:
            self.value["outputs"] = outputs
        if self._is_running and status == "completed":
            yield self._event("response.code_interpreter_call.completed")
        yield from self.done(status)


class PatchCallItem(CallItem):
    """A call of `apply_patch`. It is added once it is whole, since it has no events but those of every item."""

    def __init__(self, call_id: str) -> None:
        super().__init__("apc", "apply_patch_call", status="in_progress", call_id=call_id, operation={})

    def read(self, arguments: str) -> None:
        """Set the operation. Arguments without one become the diff of a file without a name, which never applies."""
        try:
            call = read_patch_call(arguments)
        except InvalidParams:
            call = PatchCall(UPDATE, "", arguments)
        self.value["operation"] = call.operation


class PatchOutputItem(Item):
    """The result of a patch call."""

    def __init__(self, call: PatchCallItem, done: CallDone) -> None:
        self.status = "failed" if done.failure else "completed"
        more = {"call_id": call.value["call_id"], "status": self.status, "output": done.text}
        super().__init__("apco", "apply_patch_call_output", **more)


class ShellCallItem(CallItem):
    """A call of the shell; `environment` says where it runs. The call is done once it is written.

    Its output is an item of its own, as the hosted tool sends it.
    """

    def __init__(self, call_id: str, environment: Mapping[str, str]) -> None:
        action: JsonObject = {"commands": [], "max_output_length": None, "timeout_ms": None}
        more = {"status": "in_progress", "action": action, "call_id": call_id, "environment": dict(environment)}
        super().__init__("sh", "shell_call", **more)
        self._stream = CommandStream()
        self._pieces: list[list[str]] = []  # of each command, as they came

    def write(self, delta: CallDelta) -> Iterator[Event]:
        """Append to the arguments."""
        for piece in self._stream.feed(delta.arguments):
            yield from self._until(piece.index)
            self._pieces[piece.index].append(piece.text)
            yield self._command("delta", piece.index, delta=piece.text)

    def written(self, ready: CallReady) -> Iterator[Event]:
        """Set the whole arguments. Without commands in them the call is incomplete."""
        call = _shell_call(ready.call.arguments)
        if call is None:
            yield from self.done("incomplete")
            return
        yield from self._until(len(call.commands) - 1)
        for index, command in enumerate(call.commands):
            sent = "".join(self._pieces[index])
            if command != sent and command.startswith(sent):
                yield self._command("delta", index, delta=command[len(sent) :])
            yield self._command("done", index, command=command)
        self._pieces = [[command] for command in call.commands]
        self.value["action"].update(max_output_length=call.max_output_length, timeout_ms=call.timeout_ms)
        yield from self.done()

    def _until(self, index: int) -> Iterator[Event]:
        """Add the commands up to a place."""
        while len(self._pieces) <= index:
            self._pieces.append([])
            yield self._command("added", len(self._pieces) - 1, command="")

    def _closing(self) -> Iterator[Event]:
        self.value["action"]["commands"] = ["".join(pieces) for pieces in self._pieces]
        return iter(())

    def _command(self, kind: str, index: int, **fields: Any) -> Event:
        return {"type": f"response.shell_call_command.{kind}", "command_index": index, **fields}


class ShellOutputItem(Item):
    """The outcome of a call's commands."""

    def __init__(self, call: ShellCallItem) -> None:
        action, call_id = call.value["action"], call.value["call_id"]
        more = {"output": [], "call_id": call_id, "max_output_length": action["max_output_length"]}
        super().__init__("sho", "shell_call_output", status="in_progress", **more)
        self._number = len(action["commands"])
        self._printed: dict[int, dict[str, GrowingText]] = defaultdict(_new_texts)
        self._ends: dict[int, JsonObject] = {}
        self._was_cancelled = False

    def add_news(self, news: CommandNews) -> Iterator[Event]:
        """Take in a piece of a command's output, or its end."""
        match news:
            case CommandText(index, stream, text):
                self._printed[index][stream].append(text)
                yield self._content("delta", index, delta={stream: text})
            case CommandEnd(index, exit_code):
                outcome = {"type": "timeout"} if news.timed_out else {"type": "exit", "exit_code": exit_code}
                self._was_cancelled |= news.was_cancelled
                yield self._end(index, outcome)

    def ended(self, text: str, failure: Exception | None = None) -> Iterator[Event]:
        """Note that the call is over; after a failure, commands that have not ended say why."""
        for index in range(max(1, self._number)) if failure else ():
            if index not in self._ends:
                yield from self.add_news(CommandText(index, "stderr", text))
                yield self._end(index, {"type": "exit", "exit_code": NOT_EXECUTABLE})
        yield from self.done("incomplete" if failure or self._was_cancelled else "completed")

    def _end(self, index: int, outcome: JsonObject) -> Event:
        printed = {stream: str(text) for stream, text in self._printed.pop(index, _new_texts()).items()}
        self._ends[index] = output = {"outcome": outcome, **printed}
        self.value["output"] = [self._ends[each] for each in sorted(self._ends)]
        return self._content("done", index, output=[output])

    def _content(self, kind: str, index: int, **fields: Any) -> Event:
        return self._event(f"response.shell_call_output_content.{kind}", command_index=index, **fields)


def _new_texts() -> dict[str, GrowingText]:
    return {"stdout": GrowingText(), "stderr": GrowingText()}


def _shell_call(arguments: str) -> ShellCall | None:
    try:
        return read_shell_call(arguments)
    except InvalidParams:
        return None
