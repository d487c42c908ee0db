"""The items of an `apply_patch` call, and what came of it. Pure.

An operation is shown once it is whole: its items have no events but those of every item.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_tools.containers.records import new_id
from agent_tools.errors import InvalidParams
from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.tools.patch import UPDATE, PatchCall, read_patch_call


class PatchCallItem(Item):
    """A call; `operation` is set by `read`, before the item is added."""

    def __init__(self, call_id: str) -> None:
        value = {"id": new_id("apc"), "type": "apply_patch_call", "status": "in_progress", "call_id": call_id}
        super().__init__({**value, "operation": {}})

    def write(self, arguments: str) -> Iterator[Event]:
        """Take a piece of the arguments, which shows nothing yet."""
        yield from ()

    def read(self, arguments: str) -> None:
        """Set the operation. Arguments that hold none become the diff of a file without a name, which nothing fits."""
        try:
            call = read_patch_call(arguments)
        except InvalidParams:
            call = PatchCall(UPDATE, "", arguments)
        self.value["operation"] = call.operation


class PatchOutputItem(Item):
    """The result of a patch call: `output` is the text for the model."""

    def __init__(self, call: PatchCallItem, output: str, *, has_failed: bool) -> None:
        value = {"id": new_id("apco"), "type": "apply_patch_call_output", "call_id": call.value["call_id"]}
        self.status = "failed" if has_failed else "completed"
        super().__init__({**value, "status": self.status, "output": output})
