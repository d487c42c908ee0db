"""Items as they are listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent_tools.containers.ids import new_id
from agent_tools.gateway.conversations.stored import ListedItem
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
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "mcp_approval_response": "mcpa",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "shell_call": "sh",
    "shell_call_output": "sho",
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
