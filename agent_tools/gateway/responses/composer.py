"""The events of a response, from a turn's steps; the last event holds the whole response. Pure.

The order of events and their fields are those of https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TypeVar, Union

from agent_tools.agents.steps import (
    CallBegun,
    CallCommand,
    CallDelta,
    CallDone,
    CallOutput,
    CallReady,
    CallRunning,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    RoundDone,
    Step,
    TextDelta,
)
from agent_tools.containers.records import new_id
from agent_tools.gateway.remote_mcp.reach import RemoteFailure
from agent_tools.gateway.remote_mcp.tool import RemoteTool
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses.client_calls.tools import ClientTool, text_of_arguments
from agent_tools.gateway.responses.history import LOCAL
from agent_tools.gateway.responses.items import CodeItem, Event, Item, MessageItem, ReasoningItem, RefusalItem
from agent_tools.gateway.responses.mcp.items import McpApprovalItem, McpCallItem
from agent_tools.gateway.responses.outputs import Details, FindFile, ImageUrl, citations, outputs_of, status_of
from agent_tools.gateway.responses.patch_items import PatchCallItem, PatchOutputItem
from agent_tools.gateway.responses.request import Request
from agent_tools.gateway.responses.shell.items import ShellCallItem, ShellOutputItem
from agent_tools.gateway.responses.tools import CODE, PATCH, SHELL
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.store import StoreError
from agent_tools.gateway.tools.hold import Hold
from agent_tools.models.base import JsonObject, Usage
from agent_tools.models.reply import CONTEXT_TOO_LONG
from agent_tools.results.execution import Picture

# The facts of a request and its container that the composer of its response needs.


def context_of(
    services: Services, request: Request, names: Mapping[str, str], container_id: str, hold: Hold | None
) -> ResponseContext:
    """Return them. `names` are those of the built-in tools for the model; `hold` is the container's, if it has one."""

    def find_file(name: str) -> str | None:
        with contextlib.suppress(StoreError):  # an answer without a citation is better than none
            file = services.files.named(container_id, name) if hold and hold.has_container else None
            return file.id if file else None
        return None

    def image_url(picture: Picture) -> str:
        found = find_file(PurePath(picture.path).name) if services.config.image_urls == "content" else None
        if found:
            return f"{services.config.root_path}/v1/containers/{container_id}/files/{found}/content"
        return picture.data_url

    reference = {"type": "container_reference", "container_id": container_id}
    return ResponseContext(
        tool_name=names.get(CODE, ""),
        shell_name=names.get(SHELL, ""),
        patch_name=names.get(PATCH, ""),
        environment=LOCAL if request.tools.has_local_shell else reference,
        clients={tool.name: tool for tool in request.tools.clients},
        container_id=container_id,
        shows_outputs=request.with_outputs,
        shows_details=request.with_details,
        shows_logprobs=request.with_logprobs,
        shows_summary=request.with_summary,
        is_padded=request.is_padded,
        find_file=find_file,
        image_url=image_url,
    )


# The calls that the client answers, while they are made. Pure.


class FunctionItem(Item):
    """A call of a function."""

    def __init__(self, call_id: str, tool: ClientTool) -> None:
        value = {"id": new_id("fc"), "type": "function_call", "status": "in_progress", "call_id": call_id}
        super().__init__({**value, **_named(tool), "arguments": ""})

    def write(self, arguments: str) -> Iterator[Event]:
        """Append to the arguments."""
        if arguments:
            self.value["arguments"] += arguments
            yield self._event("response.function_call_arguments.delta", delta=arguments)

    def written(self, arguments: str) -> Iterator[Event]:
        """Set the whole arguments."""
        self.value["arguments"] = arguments
        name = self.value["name"]  # types of the openai package need it in versions 2, and not before or after
        yield self._event("response.function_call_arguments.done", name=name, arguments=arguments)
        yield from self.done()


class CustomItem(Item):
    """A call of a custom tool. Its input is told once it is whole: until then it is JSON of ours."""

    def __init__(self, call_id: str, tool: ClientTool) -> None:
        value = {"id": new_id("ctc"), "type": "custom_tool_call", "call_id": call_id}  # it has no status
        super().__init__({**value, **_named(tool), "input": ""})

    def write(self, arguments: str) -> Iterator[Event]:
        """Take a piece of the arguments, of which nothing is told yet."""
        del arguments
        return iter(())

    def written(self, arguments: str) -> Iterator[Event]:
        """Set the whole arguments."""
        text = self.value["input"] = text_of_arguments(arguments)
        if text:
            yield self._event("response.custom_tool_call_input.delta", delta=text)
        yield self._event("response.custom_tool_call_input.done", input=text)
        yield from self.done()


def _named(tool: ClientTool) -> JsonObject:
    return {"name": tool.own_name, **({"namespace": tool.namespace} if tool.namespace else {})}


PADDED = 16  # characters; the length of a delta with its padding is a multiple of this
_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
_Spoken = TypeVar("_Spoken", MessageItem, RefusalItem, ReasoningItem)
_FunctionItem = Union[FunctionItem, CustomItem, ShellCallItem, PatchCallItem, McpCallItem, McpApprovalItem]
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter", "rounds": "max_messages"}


@dataclass(frozen=True)
class ResponseContext:
    """The facts of the request and its container that the composer needs.

    Attributes:
        tool_name: the code interpreter's name for the model; '' if it may not be called.
        clients: the tools that the client runs, by their names for the model.
        shell_name: likewise of the shell.
        shows_details: outputs come as events while the code runs, and in the item with what `Details` adds.
        patch_name: likewise of `apply_patch`.
        shows_summary: the model's reasoning is shown as its summary.
        environment: where the shell runs, as its calls say it.
        seal: makes `encrypted_content` of reasoning, where the client wants it.
        is_padded: deltas are padded, so that their size on the wire says less of what is in them.
    """

    tool_name: str
    clients: Mapping[str, ClientTool]
    container_id: str
    shows_outputs: bool
    find_file: FindFile
    image_url: ImageUrl
    shows_details: bool = False
    shows_logprobs: bool = False
    shows_summary: bool = False
    shell_name: str = ""
    patch_name: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    seal: Callable[[str], str] | None = None
    is_padded: bool = False


class Composer:
    """Turns steps into events; `response` is the body as it stands."""

    def __init__(self, response: JsonObject, context: ResponseContext) -> None:
        self.response = response
        self.code_items: dict[str, CodeItem] = {}
        self.shell_outputs: dict[str, ShellOutputItem] = {}
        self._context = context
        self._number = 0
        self._items: list[Item] = []
        self._speaking: MessageItem | RefusalItem | ReasoningItem | None = None
        self._functions: dict[str, _FunctionItem] = {}
        self._remote: Mapping[str, RemoteTool] = {}
        self._details = Details() if context.shows_details else None

    def offer(self, tools: Mapping[str, RemoteTool]) -> None:
        """Know the tools of MCP servers, by their names for the model."""
        self._remote = tools

    def item_of(self, call_id: str) -> Item | None:
        """Return the item of a call; None for a call of a tool that was never offered."""
        return self.code_items.get(call_id) or self._functions.get(call_id)

    def insert(self, item: Item) -> Iterator[Event]:
        """Yield the events of an item that no step tells of."""
        yield from self._add(item)

    def placed(self, item: Item, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events of an inserted item."""
        yield from self._placed(item, events)

    def begin(self) -> Iterator[Event]:
        """Yield the first events."""
        self.response["status"] = "in_progress"
        yield self._whole("response.created")
        yield self._whole("response.in_progress")

    def feed(self, step: Step) -> Iterator[Event]:
        """Yield the events of a step."""
        match step:
            case RefusalDelta(text):
                refusal = yield from self._spoken(RefusalItem, RefusalItem)
                yield from self._placed(refusal, refusal.write(text))
            case TextDelta(text, logprobs):
                item = yield from self._spoken(MessageItem, MessageItem)
                yield from self._placed(item, item.write(text, logprobs if self._context.shows_logprobs else ()))
            case ReasoningDelta(text):
                new = partial(ReasoningItem, self._context.shows_summary, self._context.seal)
                thought = yield from self._spoken(ReasoningItem, new)
                yield from self._placed(thought, thought.write(text))
            case CallBegun() | CallDelta() | CallReady():
                yield from self._silence()
                yield from self._write(step)
            case CallRunning(id_):
                yield from self._run(id_)
            case CallOutput() | CallCommand():
                yield from self._live(step)
            case CallDone():
                yield from self._done(step)
            case RoundDone():
                is_cut = not step.reason or step.reason in _INCOMPLETE
                yield from self._silence("incomplete" if is_cut else "completed")
            case Finished():
                yield from self._finish(step)

    def fail(self, error: ApiError, usage: Usage | None = None) -> Iterator[Event]:
        """Yield the events of a response that cannot go on."""
        yield from self._close_all("incomplete")
        code = _ERROR_CODES.get(error.status, "server_error")
        if error.code == CONTEXT_TOO_LONG:  # clients make the conversation shorter, and try again
            code = error.code
        inner = error.body["error"]
        flat = {"code": inner["code"] or code, "message": inner["message"], "param": inner["param"]}
        yield self._numbered({"type": "error", **flat, "error": inner})
        self.response.update(status="failed", error={"code": code, "message": error.message})
        if usage is not None:
            self.response["usage"] = response_usage(usage)
        yield self._whole("response.failed")

    def _spoken(self, kind: type[_Spoken], new: Callable[[], _Spoken]) -> Generator[Event, None, _Spoken]:
        """Return the item that is being written, a new one if it is of another kind."""
        item = self._speaking
        if not isinstance(item, kind):
            yield from self._silence()
            self._speaking = item = new()
            yield from self._add(item)
        return item

    def _silence(self, status: str = "completed") -> Iterator[Event]:
        item, self._speaking = self._speaking, None
        if isinstance(item, MessageItem):
            item.annotations = citations(item.text, self._context.container_id, self._context.find_file)
        if item is not None:
            yield from self._placed(item, item.done(status))

    def _write(self, step: CallBegun | CallDelta | CallReady) -> Iterator[Event]:
        """Yield the events of a call as the model writes it; none for a tool that was never offered."""
        match step:
            case CallBegun(id_, name) if name == self._context.tool_name:
                self.code_items[id_] = CodeItem(self._context.container_id, self._context.shows_outputs)
                yield from self._add(self.code_items[id_])
            case CallBegun(id_, name) if item := self._function_item(id_, name):
                self._functions[id_] = item
                yield from self._add(item) if not isinstance(item, PatchCallItem) else ()
            case CallDelta(id_, arguments, code):
                if code_item := self.code_items.get(id_):
                    yield from self._placed(code_item, code_item.write(code))
                elif function := self._functions.get(id_):
                    yield from self._placed(function, function.write(arguments))
            case CallReady(call, code):
                if code_item := self.code_items.get(call.id):
                    yield from self._placed(code_item, code_item.written(code))
                elif isinstance(function := self._functions.get(call.id), PatchCallItem):
                    function.read(call.arguments)
                    yield from self._add(function)
                    yield from self._placed(function, function.done())
                elif function:
                    yield from self._placed(function, function.written(call.arguments))

    def _function_item(self, id_: str, name: str) -> _FunctionItem | None:
        """Return the item of a call of anything but code; None for a tool that was never offered."""
        if name and name == self._context.shell_name:
            return ShellCallItem(id_, self._context.environment)
        if name and name == self._context.patch_name:
            return PatchCallItem(id_)
        if remote := self._remote.get(name):
            return (McpApprovalItem if remote.needs_approval else McpCallItem)(remote.label, remote.own_name)
        if tool := self._context.clients.get(name):
            return (CustomItem if tool.kind == "custom" else FunctionItem)(id_, tool)
        return None

    def _run(self, id_: str) -> Iterator[Event]:
        if item := self.code_items.get(id_):
            yield from self._placed(item, item.running())
        elif isinstance(call := self._functions.get(id_), ShellCallItem):
            self.shell_outputs[id_] = ShellOutputItem(call)
            yield from self._add(self.shell_outputs[id_])

    def _live(self, step: CallOutput | CallCommand) -> Iterator[Event]:
        """Yield the events of what a running tool yields."""
        match step:
            case CallCommand(id_, news):
                yield from self._placed(self.shell_outputs[id_], self.shell_outputs[id_].take(news))
            case CallOutput(id_, output) if self._details and (item := self.code_items.get(id_)):
                yield from self._placed(item, item.live(self._details.live(output)))

    def _done(self, step: CallDone) -> Iterator[Event]:
        if item := self.code_items.get(step.call.id):
            status = status_of(step)
            outputs = outputs_of(step, self._context.image_url, self._details) if self._context.shows_outputs else []
            yield from self._placed(item, item.ran(status, outputs))
        elif isinstance(call := self._functions.get(step.call.id), McpCallItem):
            yield from self._placed(call, call.failed(_mcp_error(step)) if step.failure else call.ran(step.text))
        elif isinstance(call, PatchCallItem):
            result = PatchOutputItem(call, step.text, has_failed=bool(step.failure))
            yield from self._add(result)
            yield from self._placed(result, result.done(result.status))
        elif isinstance(call, ShellCallItem):
            if step.call.id not in self.shell_outputs:  # it was not made
                yield from self._run(step.call.id)
            output = self.shell_outputs[step.call.id]
            yield from self._placed(output, output.failed(step.text) if step.failure else output.ran())

    def _finish(self, step: Finished) -> Iterator[Event]:
        self.response["usage"] = response_usage(step.usage)
        if step.reason == "deadline":
            yield from self.fail(ApiError(504, "The response exceeded its time limit.", code="time_limit"))
            return
        reason = _INCOMPLETE.get(step.reason)
        if step.reason == "rounds" and self.response["max_tool_calls"]:
            reason = None  # further attempts are ignored
        is_cut = bool(reason) or step.reason == "cancelled"
        yield from self._close_all("incomplete" if is_cut else "completed")
        if step.reason == "cancelled":
            self.response["status"] = "cancelled"
        else:
            self.response["status"] = "incomplete" if reason else "completed"
            self.response["incomplete_details"] = {"reason": reason} if reason else None
        self.response["completed_at"] = None if is_cut else int(time.time())
        yield self._whole("response.incomplete" if is_cut else "response.completed")

    def _close_all(self, status: str) -> Iterator[Event]:
        yield from self._silence(status)
        for item in self._items:
            yield from self._placed(item, item.done("incomplete"))

    def _add(self, item: Item) -> Iterator[Event]:
        item.index = len(self._items)
        self._items.append(item)
        self.response["output"].append(item.value)
        yield from self._placed(item, item.added())

    def _placed(self, item: Item, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            yield self._numbered({**event, "output_index": item.index})

    def _whole(self, kind: str) -> Event:
        return self._numbered({"type": kind, "response": copy.deepcopy(self.response)})

    def _numbered(self, event: Event) -> Event:
        if self._context.is_padded and event["type"].endswith(".delta"):
            event["obfuscation"] = secrets.token_urlsafe(PADDED)[: PADDED - len(str(event["delta"])) % PADDED]
        event["sequence_number"] = self._number
        self._number += 1
        return event


def _mcp_error(done: CallDone) -> JsonObject:
    failure = done.failure if isinstance(done.failure, RemoteFailure) else RemoteFailure(done.text)
    return failure.shown


def response_usage(usage: Usage) -> JsonObject:
    """Return the usage as an object of responses."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
