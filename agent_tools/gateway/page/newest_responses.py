"""The newest responses of an owner for the page's list: tokens and times, of all clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_tools.gateway.store.records import ResponseHead, ResponseTurn
from agent_tools.gateway.store.store import Store
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject

MAX_LISTED = 25
MAX_READ_BYTES = MIB  # of one response with its input and events; of a larger one only the short columns are read
MAX_WORDS = 120  # characters of a question
_CALLS = ("code_interpreter_call", "shell_call")


def newest_responses(store: Store, owner: str, running: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield an owner's newest responses, newest first, in at most `MAX_READ_BYTES` of each.

    `running` has the status of responses that run in this gateway, by their ids.
    """
    listed = store.newest(ResponseHead, MAX_LISTED, owner=owner)
    read = [row.id for row in listed if row.bytes <= MAX_READ_BYTES]
    turns = {row.id: row for row in store.get_all(ResponseTurn, read, owner=owner)}
    for row in listed:
        yield _response_shown(row, turns.get(row.id), running.get(row.id, row.status))


def _response_shown(row: ResponseHead, turn: ResponseTurn | None, status: str) -> JsonObject:
    facts: JsonObject = {"id": row.id, "created_at": row.created_at, "status": status, "is_read": turn is not None}
    if turn is None:
        return facts
    body: Mapping[str, Any] = json.loads(turn.body)
    usage, end = body.get("usage") or {}, body.get("completed_at")
    return {
        **facts,
        "model": body.get("model"),
        "previous": body.get("previous_response_id"),
        "question": _question(turn.input),
        "calls": sum(item.get("type") in _CALLS for item in body.get("output", ())),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "seconds": None if end is None else max(0, end - body["created_at"]),
    }


def _question(lines: str) -> str:
    """Return the first words of the last message of the user, '' if there is none. An item is a line of JSON."""
    for line in reversed(lines.split("\n")):
        item = json.loads(line) if line else {}
        if item.get("role") == "user":
            content = item.get("content")
            parts = [{"text": content}] if isinstance(content, str) else content or []
            text = " ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
            return " ".join(text[: 4 * MAX_WORDS].split())[:MAX_WORDS]
    return ""
