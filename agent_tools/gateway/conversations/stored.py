"""The conversations that clients create by `/v1/conversations`: their items, which responses append to, and limits.

Each item is a numbered row of its conversation, so that two answers that end at once can both append.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tools.containers.ids import new_id
from agent_tools.containers.rows import MANY, Before
from agent_tools.containers.shares import Shares
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.api_errors import full, invalid, not_found, unknown_place
from agent_tools.gateway.store.records import ConversationItem, ConversationPlace, ConversationText, StoredConversation
from agent_tools.gateway.store.store import Store, packed
from agent_tools.models.base import JsonObject

MAX_ITEM_ID = 64  # characters, the width of the column
_MEND = "Delete some (DELETE /v1/conversations/{id}), or items of them."
_NUMBER = "{}:{:012d}"


@dataclass(frozen=True)
class ListedItem:
    """An item as it is listed: its id and its JSON, which is not parsed."""

    id: str
    text: str


@dataclass(frozen=True)
class ServerOnlyFields:
    """Fields of items that clients do not get, by the ids of the items.

    Attributes:
        tool_answer: the answers that the model got to calls.
        server_fields: fields that only the model's server knows, as JSON.
    """

    tool_answer: Mapping[str, str] = field(default_factory=dict)
    server_fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The characters of all of it."""
        return sum(map(len, (*self.tool_answer.values(), *self.server_fields.values())))


class StoredConversations:
    """Thread-safe. `shares` knows the disk."""

    def __init__(self, config: GatewayConfig, store: Store, shares: Shares) -> None:
        self._config = config
        self._store = store
        self._shares = shares

    def create(self, owner: str, metadata: JsonObject, items: Sequence[JsonObject]) -> StoredConversation:
        """Make a conversation of items that have ids.

        Raises:
            ApiError: 400, the owner has reached the limit of conversations, or of bytes of their items.
            DiskFull: nothing more is stored for anyone.
        """
        most = self._config.max_conversations
        if self._store.count(StoredConversation, owner=owner) >= most:
            raise full(f"You have {most:,} conversations, the maximum. {_MEND}")
        now = time.time()
        made = StoredConversation(
            id=new_id("conv"), owner=owner, created_at=now, used_at=now, metadata=packed(metadata), container_id=None
        )
        self.check_room(owner, "", items)
        self._store.add(made, *self._rows(made, items, ServerOnlyFields()))
        return made

    def find(self, owner: str, id_: str) -> StoredConversation:
        """Return a conversation.

        Raises:
            ApiError: 404, this owner has no such conversation.
        """
        found = self._store.get(StoredConversation, id_, owner=owner)
        if found is None:
            raise not_found("conversation", id_)
        return found

    def check_room(self, owner: str, id_: str, items: Sequence[Mapping[str, Any]]) -> None:
        """Check that an owner's conversation, or a new one if `id_` is '', may have these items besides its own.

        Raises:
            ApiError: 400.
            DiskFull: nothing more is stored for anyone.
        """
        config, more = self._config, sum(len(packed(item)) for item in items)
        number, size = self._store.amount(ConversationPlace, conversation_id=id_) if id_ else (0, 0)
        if number >= config.max_conversation_items or number + len(items) > config.max_conversation_items:
            most = config.max_conversation_items
            raise full(f"The conversation has {number:,} items, and {most:,} are the maximum. {_MEND}")
        if size >= config.max_conversation_bytes or size + more > config.max_conversation_bytes:
            most = config.max_conversation_bytes
            raise full(f"The conversation takes {size:,} of the {most:,} bytes allowed for it. {_MEND}")
        if self._store.amount(ConversationPlace, owner=owner)[1] + more >= config.max_stored_bytes:
            raise full(f"Your conversations take all {config.max_stored_bytes:,} allowed bytes. {_MEND}")
        if not config.database:
            self._shares.check_disk()

    def append(
        self,
        conversation: StoredConversation,
        items: Sequence[JsonObject],
        hidden: ServerOnlyFields | None = None,
        container_id: str | None = None,
    ) -> list[ListedItem]:
        """Add items, which have ids, at the end; one whose id is there already gets another one. Return them.

        `hidden` are the fields that no client sees; `container_id` is the container of the latest call.

        Raises:
            ApiError: 404, the conversation was deleted.
        """
        while True:
            rows = self._rows(conversation, items, hidden or ServerOnlyFields())
            if self._store.add_if_new(*rows):  # else another answer has just taken these numbers
                break
        changes: dict[str, Any] = {"used_at": time.time(), **({"container_id": container_id} if container_id else {})}
        if not self._store.change(StoredConversation, conversation.id, **changes):
            self._store.delete(ConversationItem, conversation_id=conversation.id)
            raise not_found("conversation", conversation.id)
        return [ListedItem(row.item_id, row.item) for row in rows]

    def _rows(
        self, conversation: StoredConversation, items: Sequence[JsonObject], hidden: ServerOnlyFields
    ) -> list[ConversationItem]:
        """Return the rows of items that are added after the last one of now."""
        ids = [str(item["id"]) for item in items]
        starts = range(0, len(ids), MANY)
        known = [self._places(conversation.id, item_id=ids[start : start + MANY]) for start in starts]
        taken = {place.item_id for places in known for place in places}
        last = self._store.page(ConversationPlace, 1, is_descending=True, conversation_id=conversation.id)
        first = int(last[0].id.rpartition(":")[2]) + 1 if last else 1
        now = max(time.time(), last[0].created_at if last else 0.0)  # they are read in this order
        rows = []
        for number, (own, item) in enumerate(zip(ids, items), first):
            id_ = new_id(own.partition("_")[0][:8]) if own in taken else own
            taken.add(id_)
            text = packed({**item, "id": id_})
            tool_answer, fields = hidden.tool_answer.get(own, ""), hidden.server_fields.get(own, "")
            row = ConversationItem(
                id=_NUMBER.format(conversation.id, number),
                owner=conversation.owner,
                created_at=now,
                conversation_id=conversation.id,
                item_id=id_,
                bytes=len(text) + len(tool_answer) + len(fields),
                item=text,
                tool_answer=tool_answer,
                server_fields=fields,
            )
            rows.append(row)
        return rows

    def _places(self, id_: str, **where: Any) -> list[ConversationPlace]:
        return self._store.find(ConversationPlace, conversation_id=id_, **where)

    def page(self, id_: str, limit: int, after: str, is_descending: bool) -> tuple[list[ListedItem], bool]:
        """Return at most `limit` items of a conversation after the item `after`, and whether there are more.

        Only these are read.

        Raises:
            ApiError: 400, the item that the page is to come after is not there.
        """
        before = self._places(id_, item_id=after) if after else []
        if after and not before:
            raise unknown_place(after)
        start = before[0].id if before else ""
        found = self._store.page(ConversationPlace, limit + 1, start, is_descending=is_descending, conversation_id=id_)
        texts = {row.id: row for row in self._store.get_all(ConversationText, [each.id for each in found[:limit]])}
        rows = [texts[each.id] for each in found[:limit] if each.id in texts]  # else it was deleted just now
        return [ListedItem(row.item_id, row.item) for row in rows], len(found) > limit

    def read(self, id_: str) -> tuple[list[JsonObject], ServerOnlyFields]:
        """Return the items of a conversation, and what no client sees of them."""
        rows = self._store.find(ConversationItem, conversation_id=id_)
        answers = {row.item_id: row.tool_answer for row in rows if row.tool_answer}
        fields = {row.item_id: row.server_fields for row in rows if row.server_fields}
        return [json.loads(row.item) for row in rows], ServerOnlyFields(answers, fields)

    def item(self, id_: str, item_id: str) -> ListedItem:
        """Return an item."""
        found = self._store.find(ConversationText, conversation_id=id_, item_id=item_id)
        if not found:
            raise not_found("conversation item", item_id)
        return ListedItem(found[0].item_id, found[0].item)

    def delete_item(self, id_: str, item_id: str) -> None:
        """Delete an item."""
        if not self._store.delete(ConversationItem, conversation_id=id_, item_id=item_id):
            raise not_found("conversation item", item_id)

    def rename(self, id_: str, metadata: Mapping[str, Any]) -> None:
        """Change the metadata."""
        self._store.change(StoredConversation, id_, metadata=packed(metadata), used_at=time.time())

    def touch(self, id_: str) -> None:
        """Note that a conversation is used now."""
        self._store.change(StoredConversation, id_, used_at=time.time())

    def delete(self, id_: str, **where: Any) -> None:
        """Delete a conversation, if it is as `where` says, with its items."""
        if self._store.delete(
            StoredConversation, id=id_, **where
        ):  # first: an item that is added at this moment finds no conversation
            self._store.delete(ConversationItem, conversation_id=id_)

    def sweep(self) -> None:
        """Delete conversations unused for `retention` seconds, a limited number in each sweep."""
        old = Before(time.time() - self._config.retention)
        for row in self._store.page(StoredConversation, MANY, used_at=old):
            self.delete(row.id, used_at=old)


def check_item_ids(items: Iterable[Mapping[str, Any]], path: str) -> None:
    """Check that items can be stored under their own ids."""
    for index, item in enumerate(items):
        id_ = item.get("id")
        if id_ and not (isinstance(id_, str) and len(id_) <= MAX_ITEM_ID and "\0" not in id_):
            message = f"An item's id is a text of at most {MAX_ITEM_ID} characters, without a NUL."
            raise invalid(message, f"{path}[{index}].id", "invalid_value")


def conversation_shown(row: StoredConversation) -> JsonObject:
    """Return a conversation as clients see it."""
    return {
        "id": row.id,
        "object": "conversation",
        "created_at": int(row.created_at),
        "metadata": json.loads(row.metadata),
    }
