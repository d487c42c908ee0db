"""What is kept of a response beside its row: where each of its items is, and what the model was told of each call."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agent_tools.gateway import store as tables
from agent_tools.gateway.requests.failures import ApiError, missing
from agent_tools.gateway.store import Row, Store


def keep(store: Store, owner: str, body: Mapping[str, Any], told: Mapping[str, str]) -> None:
    """Keep a response's items by their ids, and what was told by the ids of calls."""
    common = {"owner": owner, "created_at": time.time()}
    store.add(tables.items, *({"id": item["id"], "response_id": body["id"], **common} for item in body["output"]))
    store.add(tables.calls, *({"id": id_, "told": text, **common} for id_, text in told.items()))


def forget(store: Store, response: Row) -> None:
    """Delete a response and all that is kept of it."""
    ids = [item["id"] for item in store.find(tables.items, "id", response_id=response["id"])]
    for start in range(0, len(ids), tables.MANY):
        store.delete(tables.calls, id=ids[start : start + tables.MANY])
    store.delete(tables.items, response_id=response["id"])
    for table in (tables.events, tables.responses):
        store.delete(table, id=response["id"])


def resolved(store: Store, owner: str, items: Iterable[Mapping[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The items, with those that are only named put in place of their references.

    `limit` is how many bytes the responses that they are in may come to.

    Raises:
        ApiError: 404, an item that is named is not kept, or is another owner's; 413, they are in too much.
    """
    outputs = _Outputs(store, owner, limit)
    return [
        outputs.find(item, f"input[{index}].id") if _is_reference(item) else dict(item)
        for index, item in enumerate(items)
    ]


def _is_reference(item: Mapping[str, Any]) -> bool:
    """A reference's type may be left out."""
    return item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})


class _Outputs:
    """The items of kept responses, each of which is read once and no more than `left` bytes in all."""

    def __init__(self, store: Store, owner: str, limit: int) -> None:
        self._store = store
        self._owner = owner
        self._limit = self._left = limit
        self._read: dict[str, dict[str, dict[str, Any]]] = {}

    def find(self, reference: Mapping[str, Any], param: str) -> dict[str, Any]:
        id_ = reference.get("id")
        if not isinstance(id_, str):
            raise missing(param)
        place = self._store.get(tables.items, id_, owner=self._owner)
        found = self._items(place["response_id"], param).get(id_) if place else None
        if found is None:
            message = f"Item with id '{id_[:80]}' not found. Items of responses with 'store' set to false are not kept."
            raise ApiError(404, message, param=param)
        return found

    def _items(self, response_id: str, param: str) -> dict[str, dict[str, Any]]:
        if response_id not in self._read:
            row = self._store.get(tables.responses, response_id, "body", owner=self._owner)
            body = str(row["body"]) if row else '{"output":[]}'
            self._left -= len(body)
            if self._left < 0:
                message = f"The items that are named are in responses of more than {self._limit:,} bytes: send them."
                raise ApiError(413, message, param=param, code="request_too_large")
            self._read[response_id] = {item["id"]: item for item in json.loads(body)["output"]}
        return self._read[response_id]
