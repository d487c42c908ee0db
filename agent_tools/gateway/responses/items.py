"""The items of a response while they are made: each yields the events by which it grows. Pure.

Events lack their sequence number and output index, which the composer adds. The order of events and their fields are
those of https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

from agent_tools.containers.ids import new_id
from agent_tools.models.base import JsonObject

Event = JsonObject


class Item:
    """An unfinished item. `value` is its JSON in the response's output, at `index`."""

    begins_with: ClassVar[str] = ""  # the event that follows a new item's own

    def __init__(self, prefix: str, kind: str, **fields: Any) -> None:
        self.value: JsonObject = {"id": new_id(prefix), "type": kind, **fields}
        self.index = 0
        self.is_done = False

    @property
    def id(self) -> str:
        """The item's id."""
        return str(self.value["id"])

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item."""
        yield {"type": "response.output_item.added", "item": copy.deepcopy(self.value)}
        if self.begins_with:
            yield self._event(self.begins_with)

    def done(self, status: str = "completed") -> Iterator[Event]:
        """Yield the events of a finished item."""
        if not self.is_done:
            self.is_done = True
            if "status" in self.value:
                self.value["status"] = status
            yield from self._closing()
            yield {"type": "response.output_item.done", "item": copy.deepcopy(self.value)}

    def _closing(self) -> Iterator[Event]:
        return iter(())

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, **fields}


class CompactionItem(Item):
    """A summary in place of the conversation before it."""

    def __init__(self, encrypted_content: str = "") -> None:
        super().__init__("cmp", "compaction", encrypted_content=encrypted_content)

    def begun(self) -> Iterator[Event]:
        """Yield the event that the model writes the summary."""
        yield self._event("response.compaction.compacting")
