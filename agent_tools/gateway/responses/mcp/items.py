"""The items of MCP servers while they are made: lists of tools, calls, and requests for approval. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.containers.records import new_id
from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.models.base import JsonObject

_LIST, _CALL = "response.mcp_list_tools", "response.mcp_call"


class McpListItem(Item):
    """The tools of a server."""

    def __init__(self, label: str) -> None:
        super().__init__({"id": new_id("mcpl"), "type": "mcp_list_tools", "server_label": label, "tools": []})

    def added(self) -> Iterator[Event]:
        """Yield the events of a list that is asked for."""
        yield from super().added()
        yield self._event(f"{_LIST}.in_progress")

    def listed(self, tools: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        """Set the tools that are offered, as MCP lists them."""
        self.value["tools"] = [_tool_shown(tool) for tool in tools]
        yield self._event(f"{_LIST}.completed")
        yield from self.done()

    def failed(self, message: str) -> Iterator[Event]:
        """Set the reason for which there are none."""
        self.value["error"] = message
        yield self._event(f"{_LIST}.failed")
        yield from self.done()


class McpCallItem(Item):
    """A call of a server's tool; `request_id` is that of the request for its approval, if there was one."""

    def __init__(self, label: str, name: str, request_id: str | None = None) -> None:
        named = {"id": new_id("mcp"), "type": "mcp_call", "server_label": label, "name": name, "arguments": ""}
        more = {"status": "in_progress", "output": None, "error": None, "approval_request_id": request_id}
        super().__init__({**named, **more})

    def added(self) -> Iterator[Event]:
        """Yield the events of a new call."""
        yield from super().added()
        yield self._event(f"{_CALL}.in_progress")

    def write(self, arguments: str) -> Iterator[Event]:
        """Append to the arguments."""
        if arguments:
            self.value["arguments"] += arguments
            yield self._event(f"{_CALL}_arguments.delta", delta=arguments)

    def written(self, arguments: str) -> Iterator[Event]:
        """Set the whole arguments."""
        self.value["arguments"] = arguments
        yield self._event(f"{_CALL}_arguments.done", arguments=arguments)

    def ran(self, output: str) -> Iterator[Event]:
        """Set what the tool returned."""
        self.value["output"] = output
        yield self._event(f"{_CALL}.completed")
        yield from self.done()

    def failed(self, error: JsonObject) -> Iterator[Event]:
        """Set the reason for which it returned nothing."""
        self.value["error"] = error
        yield self._event(f"{_CALL}.failed")
        yield from self.done("failed")


class McpApprovalItem(Item):
    """A call that a person is to approve. It has its arguments, and is told, once they are whole."""

    def __init__(self, label: str, name: str) -> None:
        named = {"type": "mcp_approval_request", "server_label": label, "name": name, "arguments": ""}
        super().__init__({"id": new_id("mcpr"), **named})

    def write(self, arguments: str) -> Iterator[Event]:
        """Take a piece of the arguments, of which nothing is told yet."""
        del arguments
        return iter(())

    def written(self, arguments: str) -> Iterator[Event]:
        """Set the whole arguments."""
        self.value["arguments"] = arguments
        yield from self.done()


def _tool_shown(tool: Mapping[str, Any]) -> JsonObject:
    """Return a tool, as MCP lists it, as the item shows it."""
    shown = {name: tool.get(name) for name in ("name", "description", "annotations")}
    return {**shown, "input_schema": tool.get("inputSchema") or {}}


# Calls that a person was asked about: what was decided, and the calls of a conversation that it is for. Pure.


REQUEST, RESPONSE = "mcp_approval_request", "mcp_approval_response"
MAX_REASON = 2_000  # characters that the model is told


@dataclass(frozen=True)
class Decision:
    """An answer to a request. `name` is the tool's own, of the server `label`; `is_new` if it came with this input."""

    request_id: str
    is_approved: bool
    reason: str
    label: str = ""
    name: str = ""
    arguments: str = ""
    is_new: bool = True

    @property
    def refusal(self) -> str:
        """The words that the model is told of a call that was not approved."""
        return f"The user did not approve this call. {self.reason[:MAX_REASON]}".strip()


def read_decisions(items: Sequence[Mapping[str, Any]], path: str = "input") -> list[tuple[Decision, str]]:
    """Return the decisions among items, each with its item's path.

    Raises:
        ApiError: 400, one of them is none.
    """
    found = []
    for index, item in enumerate(items):
        if item.get("type") == RESPONSE:
            fields = Fields(item, f"{path}[{index}]")
            approve = fields.flag("approve")
            if approve is None:
                param = fields.param("approve")
                raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
            id_, reason = fields.needed("approval_request_id"), fields.text("reason") or ""
            found.append((Decision(id_, approve, reason), fields.path))
    return found


def executed(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of requests whose calls are among the items, since they were made."""
    return frozenset(str(item.get("approval_request_id")) for item in items if item.get("type") == "mcp_call")


def asked(items: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the ids of the requests for approval among the items."""
    return frozenset(str(item.get("id")) for item in items if item.get("type") == REQUEST)


@dataclass(frozen=True)
class OpenCall:
    """A call in messages that has no answer yet; one belongs at `index` among them."""

    index: int
    id: str
    name: str
    arguments: str


def open_calls(messages: Sequence[JsonObject]) -> Iterator[OpenCall]:
    """Yield the calls without an answer, the last ones first, so that answers can be put in as they come."""
    for place in range(len(messages) - 1, -1, -1):
        calls = messages[place].get("tool_calls") or ()
        end = place + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        answered = {message.get("tool_call_id") for message in messages[place + 1 : end]}
        for call in reversed(list(calls)):
            if call["id"] not in answered:
                yield OpenCall(end, call["id"], call["function"]["name"], call["function"]["arguments"])


def answer(call: OpenCall, text: str) -> JsonObject:
    """Return the message that answers a call."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}
