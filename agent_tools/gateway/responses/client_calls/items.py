"""The calls that the client answers, while they are made. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent_tools.containers.ids import new_id
from agent_tools.gateway.responses.client_calls.tools import ClientTool, text_of_arguments
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.models.base import JsonObject


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
