"""Converts a turn's steps into the events of a response; the last event has the whole response. Pure."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

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
from agent_tools.gateway.remote_mcp.tool import RemoteTool
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.call_items import (
    CallItem,
    CodeItem,
    CustomItem,
    FunctionItem,
    McpApprovalItem,
    McpCallItem,
    PatchCallItem,
    PatchOutputItem,
    ShellCallItem,
    ShellOutputItem,
    ToolSearchItem,
)
from agent_tools.gateway.responses.citations import FindFile, citations
from agent_tools.gateway.responses.client_shell import LOCAL
from agent_tools.gateway.responses.client_tools import TOOL_SEARCH
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.responses.outputs import Details, ImageUrl, outputs_of, status_of
from agent_tools.gateway.responses.request import ResponseRequest
from agent_tools.gateway.responses.text_items import MessageItem, ReasoningItem, RefusalItem, SpokenItem
from agent_tools.models.base import JsonObject, Usage
from agent_tools.models.server_errors import CONTEXT_TOO_LONG

PADDED = 16  # characters; the length of a delta with its padding is a multiple of this
_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter", "rounds": "max_messages"}
_CLIENTS_ITEMS = {"function": FunctionItem, "custom": CustomItem, TOOL_SEARCH: ToolSearchItem}
_Spoken = TypeVar("_Spoken", MessageItem, RefusalItem, ReasoningItem)


@dataclass(frozen=True)
class ResponseContext:
    """The container of a response, and functions of it for the composer.

    Attributes:
        names: the names for the model of the built-in tools that may be called, by their kinds.
        find_file: returns the id of the container's file of a name; None without a container.
        image_url: returns the URL at which a client sees a picture.
        seal: makes `encrypted_content` of reasoning, where the client wants it.
    """

    container_id: str
    find_file: FindFile | None
    image_url: ImageUrl
    names: Mapping[str, str] = field(default_factory=dict)
    seal: Callable[[str], str] | None = None


class Composer:
    """Converts steps into events; `response` is the current body."""

    def __init__(self, response: JsonObject, request: ResponseRequest, context: ResponseContext) -> None:
        self.response = response
        self._request = request
        self._context = context
        self._kinds = {name: kind for kind, name in context.names.items()}
        self._clients = {tool.name: tool for tool in request.tools.clients}
        self._remote: Mapping[str, RemoteTool] = {}
        self._details = Details() if request.with_details else None
        self._number = 0
        self._items: list[Item] = []
        self._calls: dict[str, CallItem] = {}
        self._shell_outputs: dict[str, ShellOutputItem] = {}
        self._speaking: SpokenItem | None = None

    def offer(self, tools: Mapping[str, RemoteTool]) -> None:
        """Recognise calls of the tools of MCP servers, by their names for the model."""
        self._remote = tools

    def item_of(self, call_id: str) -> Item | None:
        """Return the item of a call; None for a call of a tool that was never offered."""
        return self._calls.get(call_id)

    def answered_by(self, call_id: str) -> Item | None:
        """Return the item that holds the answer to a call of code or of the shell."""
        item = self._calls.get(call_id)
        return item if isinstance(item, CodeItem) else self._shell_outputs.get(call_id)

    def insert(self, item: Item) -> Iterator[Event]:
        """Yield the events of an item that belongs to no step."""
        item.index = len(self._items)
        self._items.append(item)
        self.response["output"].append(item.value)
        yield from self.placed(item, item.added())

    def placed(self, item: Item, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events of an inserted item."""
        for event in events:
            yield self._numbered({**event, "output_index": item.index})

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
                yield from self.placed(refusal, refusal.write(text))
            case TextDelta(text, logprobs):
                item = yield from self._spoken(MessageItem, MessageItem)
                yield from self.placed(item, item.write(text, logprobs if self._request.with_logprobs else ()))
            case ReasoningDelta(text):
                new = partial(ReasoningItem, self._request.with_summary, self._context.seal)
                thought = yield from self._spoken(ReasoningItem, new)
                yield from self.placed(thought, thought.write(text))
            case CallBegun() | CallDelta() | CallReady():
                yield from self._silence()
                yield from self._write(step)
            case CallRunning(id_, _):
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
        """Yield the events of a failed response."""
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
            yield from self.insert(item)
        return item

    def _silence(self, status: str = "completed") -> Iterator[Event]:
        item, self._speaking = self._speaking, None
        if isinstance(item, MessageItem) and self._context.find_file:
            item.annotations = [*citations(str(item.text), self._context.container_id, self._context.find_file)]
        if item is not None:
            yield from self.placed(item, item.done(status))

    def _write(self, step: CallBegun | CallDelta | CallReady) -> Iterator[Event]:
        """Yield the events of a call as the model writes it; none for a tool that was never offered."""
        if isinstance(step, CallBegun):
            if item := self._new_call(step.id, step.name):
                self._calls[step.id] = item
                yield from self.insert(item) if not isinstance(item, PatchCallItem) else ()
            return
        found = self._calls.get(step.id if isinstance(step, CallDelta) else step.call.id)
        if found is None:
            return
        if isinstance(step, CallDelta):
            yield from self.placed(found, found.write(step))
        elif isinstance(found, PatchCallItem):
            found.read(step.call.arguments)
            yield from self.insert(found)
            yield from self.placed(found, found.done())
        else:
            yield from self.placed(found, found.written(step))

    def _new_call(self, id_: str, name: str) -> CallItem | None:
        """Return the item of a call; None for a tool that was never offered."""
        match self._kinds.get(name):
            case "code_interpreter":
                return CodeItem(self._context.container_id, self._request.with_outputs)
            case "shell":
                reference = {"type": "container_reference", "container_id": self._context.container_id}
                return ShellCallItem(id_, LOCAL if self._request.tools.is_local("shell") else reference)
            case "apply_patch":
                return PatchCallItem(id_)
        if remote := self._remote.get(name):
            return (McpApprovalItem if remote.needs_approval else McpCallItem)(remote.label, remote.own_name)
        if tool := self._clients.get(name):
            return _CLIENTS_ITEMS[tool.kind](id_, tool)
        return None

    def _run(self, id_: str) -> Iterator[Event]:
        item = self._calls.get(id_)
        if isinstance(item, CodeItem):
            yield from self.placed(item, item.running())
        elif isinstance(item, ShellCallItem):
            self._shell_outputs[id_] = ShellOutputItem(item)
            yield from self.insert(self._shell_outputs[id_])

    def _live(self, step: CallOutput | CallCommand) -> Iterator[Event]:
        """Yield the events of a running tool's output."""
        if isinstance(step, CallCommand):
            shell = self._shell_outputs[step.id]
            yield from self.placed(shell, shell.add_news(step.news))
        elif self._details and isinstance(item := self._calls.get(step.id), CodeItem):
            yield from self.placed(item, item.live(self._details.live(step.output)))

    def _done(self, step: CallDone) -> Iterator[Event]:
        id_ = step.call.id
        match self._calls.get(id_):
            case CodeItem() as item:
                shown = self._request.with_outputs
                outputs = outputs_of(step, self._context.image_url, self._details) if shown else []
                yield from self.placed(item, item.ended(status_of(step), outputs))
            case McpCallItem() as call:
                yield from self.placed(call, call.ended(step.text, step.failure))
            case PatchCallItem() as patch:
                result = PatchOutputItem(patch, step)
                yield from self.insert(result)
                yield from self.placed(result, result.done(result.status))
            case ShellCallItem():
                if id_ not in self._shell_outputs:  # it was not made
                    yield from self._run(id_)
                output = self._shell_outputs[id_]
                yield from self.placed(output, output.ended(step.text, step.failure))

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
            yield from self.placed(item, item.done("incomplete"))

    def _whole(self, kind: str) -> Event:
        return self._numbered({"type": kind, "response": copy.deepcopy(self.response)})

    def _numbered(self, event: Event) -> Event:
        if self._request.is_padded and event["type"].endswith(".delta"):
            event["obfuscation"] = secrets.token_urlsafe(PADDED)[: PADDED - len(str(event["delta"])) % PADDED]
        event["sequence_number"] = self._number
        self._number += 1
        return event


def response_usage(usage: Usage) -> JsonObject:
    """Return the usage as an object of responses."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
