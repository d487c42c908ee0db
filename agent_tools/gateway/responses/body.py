"""The first body of a response, and the items of an input as they are listed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent_tools.containers.records import new_id
from agent_tools.gateway.conversations.stored import ListedItem
from agent_tools.gateway.responses.request import Request
from agent_tools.models.base import JsonObject

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "code_interpreter_call": "ci",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_approval_response": "mcpa",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "shell_call": "sh",
    "shell_call_output": "sho",
}


def fresh_body(request: Request) -> JsonObject:
    """Return all fields of a response that is only begun."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if request.background else "in_progress",
        "background": request.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "previous_response_id": request.previous_response_id,
        "store": request.store,
        "tool_choice": request.tools.shown_choice,
        "tools": request.tools.shown,
        "usage": None,
        **({"conversation": {"id": request.conversation}} if request.conversation else {}),
        **request.echo,
    }


def listed_items(items: Iterable[Mapping[str, Any]]) -> Iterator[JsonObject]:
    """Yield input items with ids, which come first, and messages in their long form."""
    for item in items:
        kind = str(item.get("type") or "message")
        listed: JsonObject = {"id": None, **item, "type": kind}
        listed["id"] = item.get("id") or new_id(_PREFIXES.get(kind, "item"))
        if kind == "message":
            listed.update(status=item.get("status") or "completed", content=_content(item))
        elif kind.startswith(("function_call", "shell_call", "apply_patch_call")):
            listed["status"] = item.get("status") or "completed"
        yield listed


def stored_items(lines: str) -> list[ListedItem]:
    """Read listed items from their stored lines, as far as their ids."""
    read, start = json.JSONDecoder().raw_decode, len('{"id":')
    return [ListedItem(read(line, start)[0], line) for line in lines.split("\n") if line]


def _content(item: Mapping[str, Any]) -> Any:
    content = item.get("content")
    if not isinstance(content, str):
        return content
    if item.get("role") == "assistant":
        return [{"type": "output_text", "text": content, "annotations": []}]
    return [{"type": "input_text", "text": content}]
