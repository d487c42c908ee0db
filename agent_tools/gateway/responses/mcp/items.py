"""The items of MCP servers while they are made: lists of tools, calls, and requests for approval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_tools.containers.ids import new_id
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
