"""The answer of an MCP server's tool, as a text."""

from __future__ import annotations

import json
from typing import Any

JsonObject = dict[str, Any]


def answer_text(answer: JsonObject) -> str:
    """Return an answer's text: its text parts, with a note for each other part, else its structured content."""
    parts = [part for part in answer.get("content") or () if isinstance(part, dict)]
    found = "\n".join(_text(part) for part in parts)
    structured = answer.get("structuredContent")
    return json.dumps(structured, ensure_ascii=False) if structured is not None and not found else found


def _text(part: JsonObject) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    resource = part.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[{part.get('type', 'content')!s:.40}]"
