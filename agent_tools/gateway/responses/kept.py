"""What is kept of a response beside its row: where each of its items is, and what the model was told of each call."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agent_tools.gateway import store as tables
from agent_tools.gateway.failures import ApiError, missing
from agent_tools.gateway.store import Row, Store


def keep(store: Store, owner: str, body: Mapping[str, Any], told: Mapping[str, str]) -> None:
    """Keep a response's items by their ids, and what was told by the ids of calls."""
    common = {"owner": owner, "created_at": time.time()}
    store.add(tables.items, *({"id": item["id"], "response_id": body["id"], **common} for item in body["output"]))
    store.add(tables.calls, *({"id": id_, "told": text, **common} for id_, text in told.items()))


def forget(store: Store, response: Row) -> None:
    """Delete a response and all that is kept of it."""
    store.delete(tables.calls, id=[item["id"] for item in json.loads(response["body"])["output"]])
    store.delete(tables.items, response_id=response["id"])
    for table in (tables.events, tables.responses):
        store.delete(table, id=response["id"])


def resolved(store: Store, owner: str, items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items, with those that are only named put in place of their references.

    Raises:
        ApiError: 404, an item that is named is not kept, or is another owner's.
    """
    return [
        _find(store, owner, item, f"input[{index}].id") if _is_reference(item) else dict(item)
        for index, item in enumerate(items)
    ]


def _is_reference(item: Mapping[str, Any]) -> bool:
    """A reference's type may be left out."""
    return item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})


def _find(store: Store, owner: str, reference: Mapping[str, Any], param: str) -> dict[str, Any]:
    id_ = reference.get("id")
    if not isinstance(id_, str):
        raise missing(param)
    place = store.get(tables.items, id_, owner=owner)
    response = store.get(tables.responses, place["response_id"], owner=owner) if place else None
    output: list[dict[str, Any]] = json.loads(response["body"])["output"] if response else []
    found = next((item for item in output if item["id"] == id_), None)
    if found is None:
        message = f"Item with id '{id_[:80]}' not found. Items of responses with 'store' set to false are not kept."
        raise ApiError(404, message, param=param)
    return found
