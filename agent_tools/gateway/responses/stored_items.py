"""Items of stored responses by their ids: stores them, deletes them, and resolves references to them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_tools.containers.records import Record
from agent_tools.containers.rows import MANY
from agent_tools.gateway.conversations.recent_fields import RecentFields
from agent_tools.gateway.conversations.stored import ServerOnlyFields
from agent_tools.gateway.requests.api_errors import ApiError, invalid, missing
from agent_tools.gateway.responses.approvals import REQUEST, RESPONSE, Decision, executed, read_decisions
from agent_tools.gateway.store.records import (
    ResponseBody,
    ResponseTurn,
    StoredCall,
    StoredEvents,
    StoredItem,
    StoredResponse,
)
from agent_tools.gateway.store.store import Store, packed
from agent_tools.limits import MIB
from agent_tools.models.base import Json, JsonObject

MAX_DECIDED = 64 * MIB  # bytes of the responses that hold the requests for approval of one request


def rows_of(owner: str, body: Mapping[str, Any], hidden: ServerOnlyFields) -> list[Record]:
    """Return the places of a response's items, and their hidden fields."""
    now, id_ = time.time(), body["id"]
    items = [StoredItem(id=item["id"], owner=owner, created_at=now, response_id=id_) for item in body["output"]]
    tool_answer, fields = hidden.tool_answer, hidden.server_fields
    calls = [
        StoredCall(
            id=key, owner=owner, created_at=now, tool_answer=tool_answer.get(key, ""), server_fields=fields.get(key, "")
        )
        for key in {**tool_answer, **fields}
    ]
    return [*items, *calls]


def record_calls(store: Store, owner: str, body: Mapping[str, Any], hidden: ServerOnlyFields) -> None:
    """Store the server's fields of function calls a second time, for clients that send calls without their ids.

    Servers may number the calls of every reply from 0: of calls that are alike the last one counts.
    """
    now = time.time()
    for item in body["output"]:
        fields, key = hidden.server_fields.get(item["id"]), call_key(owner, item)
        if not fields or key is None:
            continue
        place = StoredItem(id=key, owner=owner, created_at=now, response_id=body["id"])  # deleted with its response
        call = StoredCall(id=key, owner=owner, created_at=now, tool_answer="", server_fields=fields)
        if not store.add_if_new(place, call):
            store.change(StoredItem, key, created_at=now, response_id=body["id"])
            store.change(StoredCall, key, created_at=now, server_fields=fields)


def call_key(owner: str, item: Mapping[str, Any]) -> str | None:
    """Return the key of a function call that does not depend on its item's id; None for an item of another kind."""
    if item.get("type") not in ("function_call", "custom_tool_call"):
        return None
    parts = [owner, *(item.get(name) for name in ("call_id", "namespace", "name", "arguments", "input"))]
    return f"call_{hashlib.sha256(packed(parts).encode()).hexdigest()[:48]}"


def hidden_of(store: Store, recent: RecentFields, owner: str, items: Iterable[Mapping[str, Any]]) -> ServerOnlyFields:
    """Return the hidden fields of items, by the ids of items and the keys of function calls."""
    named = [key for item in items for key in _keys(owner, item)]
    if not named:
        return ServerOnlyFields()
    rows = store.get_all(StoredCall, named, owner=owner)
    tool_answer = {row.id: row.tool_answer for row in rows if row.tool_answer}
    return ServerOnlyFields(
        tool_answer, recent.find(owner, named) | {row.id: row.server_fields for row in rows if row.server_fields}
    )


def record_recent(recent: RecentFields, owner: str, body: Mapping[str, Any], hidden: ServerOnlyFields) -> None:
    """Remember the server's fields of items that are stored nowhere, for clients that send them again."""
    for item in body["output"]:
        if fields := hidden.server_fields.get(item["id"]):
            recent.record(owner, dict.fromkeys(_keys(owner, item), fields))


def _keys(owner: str, item: Mapping[str, Any]) -> list[str]:
    return [key for key in (item.get("id"), call_key(owner, item)) if isinstance(key, str)]


def forget(store: Store, response_id: str) -> None:
    """Delete a response and all that is stored with it.

    Its own row is deleted first: a job that ends it now finds no row, and deletes what it has stored.
    """
    store.delete(StoredResponse, id=response_id)
    forget_items(store, response_id)
    store.delete(StoredEvents, id=response_id)


def forget_items(store: Store, response_id: str) -> None:
    """Delete the items of a response with all that is stored with them."""
    ids = [item.id for item in store.find(StoredItem, response_id=response_id)]
    for start in range(0, len(ids), MANY):
        store.delete(StoredCall, id=ids[start : start + MANY])
        store.delete(StoredItem, id=ids[start : start + MANY], response_id=response_id)


def resolved(
    store: Store, owner: str, items: Sequence[Mapping[str, Any]], limit: int, path: str = "input"
) -> list[JsonObject]:
    """Return the items, with the stored ones in place of references to them.

    `limit` bounds the bytes of all responses that the referenced items are in, and of items that are referenced again;
    errors name an item by `path`.

    Raises:
        ApiError: 404, a referenced item is not stored, or is another owner's; 413, the limit is exceeded.
    """
    outputs, found = _Outputs(store, owner, limit, map(_id_of_stored, items)), list[JsonObject]()
    for index, item in enumerate(items):
        find = outputs.find if _is_reference(item) else outputs.get
        found.append(find(_id_of_stored(item), f"{path}[{index}].id") or dict(item))
    return found


def decided(store: Store, owner: str, items: Sequence[Mapping[str, Any]], earlier: Sequence[Json]) -> list[Decision]:
    """Return the decisions on calls of MCP servers among the items, each with the call that it is about.

    The requests are among the items or the earlier ones of the conversation, else in a stored response.

    Raises:
        ApiError: 404, a request is not stored, or is another owner's; 400, it is none.
    """
    said = [*earlier, *items]
    if not any(item.get("type") == RESPONSE for item in said):
        return []
    known, over = {str(item.get("id")): item for item in said if item.get("type") == REQUEST}, executed(said)
    before = [(replace(decision, is_new=False), path) for decision, path in read_decisions(earlier)]
    decisions, found = [*before, *read_decisions(items)], []
    ids = (decision.request_id for decision, _ in decisions if decision.request_id not in known)
    outputs = _Outputs(store, owner, MAX_DECIDED, ids)
    for decision, path in decisions:
        id_, param = decision.request_id, f"{path}.approval_request_id"
        if id_ in over:  # its call was made: it allows no other
            continue
        asked = known.get(id_) or outputs.find(id_, param)
        if asked.get("type") != REQUEST:
            raise invalid(f"'{id_[:80]}' is no request for approval.", param, "invalid_value")
        label, name, arguments = (str(asked.get(key) or "") for key in ("server_label", "name", "arguments"))
        found.append(replace(decision, label=label, name=name, arguments=arguments))
    return found


def files_before(store: Store, owner: str, id_: str | None, limit: int) -> list[list[JsonObject]]:
    """Return the file parts of the inputs of a response and of those before it, the latest first.

    `limit` bounds the bytes that are read of all of them.
    """
    inputs = (text for text in _inputs_before(store, owner, id_, limit) if '"input_file"' in text)
    return [[part for line in text.split("\n") for part in _files_of(json.loads(line))] for text in inputs]


def said_before(store: Store, owner: str, id_: str | None, limit: int) -> list[JsonObject]:
    """Return the user's messages in the inputs of a response and of those before it, in order.

    `limit` is that of `files_before`.
    """
    inputs = reversed([*_inputs_before(store, owner, id_, limit)])
    items = (json.loads(line) for text in inputs for line in text.split("\n") if line)
    return [item for item in items if item.get("role") == "user"]


def _inputs_before(store: Store, owner: str, id_: str | None, limit: int) -> Iterator[str]:
    """Yield the inputs, as lines of JSON, of a response and of those before it, the latest first."""
    while id_ and limit > 0:
        turn = store.get(ResponseTurn, id_, owner=owner)
        if turn is None:
            break
        limit -= len(turn.input) + len(turn.body)
        yield turn.input
        id_ = json.loads(turn.body).get("previous_response_id")


def _files_of(item: Mapping[str, Any]) -> Iterator[JsonObject]:
    for key in ("content", "output"):
        parts = item.get(key)
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "input_file":
                yield part


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Tell a reference, whose type may be left out, from an item."""
    return item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})


def _id_of_stored(item: Mapping[str, Any]) -> Any:
    """Return the id of the stored item that an item stands for; None for an item that stands for itself."""
    if _is_reference(item):
        return item.get("id")
    return item["call_id"] if _is_code_as_function(item) else None


def _is_code_as_function(item: Mapping[str, Any]) -> bool:
    """Tell a code interpreter's call that a client sends back as a function's, with its item's id (LangChain.js)."""
    is_function = item.get("type") == "function_call" and item.get("name") == "code_interpreter"
    return is_function and str(item.get("call_id")).startswith("ci_")


class _Outputs:
    """The items of `ids` in stored responses. Each response is read once, and at most `limit` bytes come of all."""

    def __init__(self, store: Store, owner: str, limit: int, ids: Iterable[Any]) -> None:
        self._store = store
        self._owner = owner
        self._limit = self._left = limit
        self._read: dict[str, dict[str, JsonObject]] = {}
        self._found: dict[str, tuple[JsonObject, int]] = {}  # by id, with its bytes
        wanted = list(dict.fromkeys(id_ for id_ in ids if isinstance(id_, str)))
        self._places = {row.id: row.response_id for row in store.get_all(StoredItem, wanted, owner=owner)}

    def find(self, id_: Any, param: str) -> JsonObject:
        if not isinstance(id_, str):
            raise missing(param)
        item = self.get(id_, param)
        if item is None:
            message = (
                f"Item with id '{id_[:80]}' not found. Items of responses with 'store' set to false are not stored."
            )
            raise ApiError(404, message, param=param)
        return item

    def get(self, id_: Any, param: str) -> JsonObject | None:
        if id_ in self._found:
            found, size = self._found[id_]
            self._spend(size, param)
            return found
        place = self._places.get(id_)
        item = self._items(place, param).get(id_) if place else None
        if item is not None:
            self._found[id_] = item, len(packed(item))
        return item

    def _items(self, response_id: str, param: str) -> dict[str, JsonObject]:
        if response_id not in self._read:
            response = self._store.get(ResponseBody, response_id, owner=self._owner)
            body = response.body if response else '{"output":[]}'
            self._spend(len(body), param)
            self._read[response_id] = {item["id"]: item for item in json.loads(body)["output"]}
        return self._read[response_id]

    def _spend(self, size: int, param: str) -> None:
        self._left -= size
        if self._left < 0:
            message = f"The referenced items have more than {self._limit:,} bytes: send the items themselves."
            raise ApiError(413, message, param=param, code="request_too_large")
