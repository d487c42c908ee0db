"""The newest responses of an owner, as the page lists them: their tokens and times, whichever client asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_tools.gateway.store.records import ResponseBody, ResponseListed
from agent_tools.gateway.store.store import Store
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject

MAX_LISTED = 25
MAX_READ_BYTES = MIB  # of one response with its input and events; of a larger one only the short columns are read
_CALLS = ("code_interpreter_call", "shell_call")


def newest_responses(store: Store, owner: str) -> Iterator[JsonObject]:
    """Yield an owner's newest responses, newest first, in at most `MAX_READ_BYTES` of each."""
    listed = store.newest(ResponseListed, MAX_LISTED, owner=owner)
    read = [row.id for row in listed if row.bytes <= MAX_READ_BYTES]
    bodies = {row.id: json.loads(row.body) for row in store.get_all(ResponseBody, read, owner=owner)}
    for row in listed:
        yield _shown(row, bodies.get(row.id))


def _shown(row: ResponseListed, body: Mapping[str, Any] | None) -> JsonObject:
    facts: JsonObject = {"id": row.id, "created_at": row.created_at, "status": row.status, "is_read": body is not None}
    if body is None:
        return facts
    usage, end = body.get("usage") or {}, body.get("completed_at")
    return {
        **facts,
        "model": body.get("model"),
        "calls": sum(item.get("type") in _CALLS for item in body.get("output", ())),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "seconds": None if end is None else max(0, end - body["created_at"]),
    }
