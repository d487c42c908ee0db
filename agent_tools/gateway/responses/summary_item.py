"""A summary as an item: the request for it, and its message for the model later. Pure.

The item's `encrypted_content` is base64 of JSON, and hides nothing: the client has read all of it before. It
replaces every item before it, as OpenAI's does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_tools.bodies.json_body import BodyRefused, parsed
from agent_tools.containers.ids import new_id
from agent_tools.gateway.requests.api_errors import invalid, missing
from agent_tools.models.base import JsonObject

KIND, TRIGGER = "compaction", "compaction_trigger"
MAX_SUMMARY = 1_000_000  # characters
ASKED = (
    "Summarise this conversation so that you can go on from the summary alone: it replaces all that was said. Keep "
    "what the user wants and has decided, facts, names, numbers, identifiers, files and their contents, what was done "
    "and what came of it, and what is still to be done. Leave out the rest. Answer with the summary only."
)
_SUMMARY = "(Summary of the conversation so far:)\n\n{}"
_NEWEST = "{}\n\nThe user's newest message:\n\n{}"


def compaction_item(summary: str, newest: str = "") -> JsonObject:
    """Return the item of a summary; `newest` is the message that it is followed by, which the item stands for, too."""
    whole = _NEWEST.format(summary, newest) if newest else summary
    content = base64.b64encode(json.dumps({"summary": whole}).encode()).decode()
    return {"id": new_id("cmp"), "type": KIND, "encrypted_content": content}


def read_summary(item: Mapping[str, Any], param: str) -> str:
    """Return the summary in an item.

    Raises:
        ApiError: 400, the item was not made here.
    """
    content = item.get("encrypted_content")
    if not isinstance(content, str):
        raise missing(f"{param}.encrypted_content")
    try:
        summary = parsed(base64.b64decode(content, validate=True))["summary"]
    except (BodyRefused, ValueError, KeyError, TypeError, IndexError):
        summary = None
    if not isinstance(summary, str) or len(summary) > MAX_SUMMARY:
        raise invalid("The compaction was not made here.", f"{param}.encrypted_content", "invalid_value")
    return summary


def summary_message(summary: str) -> JsonObject:
    """Return the message that replaces the conversation."""
    return {"role": "user", "content": _SUMMARY.format(summary)}


def first_kept(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the newest compaction, 0 if there is none: all before it is left out."""
    return max((index for index, item in enumerate(items) if item.get("type") == KIND), default=0)


def split(messages: Sequence[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the messages that are summarised, and the user's newest ones, which are kept.

    Nothing is summarised while calls are being answered: the answers belong to what was said before.
    """
    end = len(messages)
    while end and messages[end - 1].get("role") == "user":
        end -= 1
    return (list(messages[:end]), list(messages[end:])) if end < len(messages) else ([], list(messages))


def text_of_messages(messages: Sequence[JsonObject]) -> str:
    """Return the text of messages; pictures and files are named."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        found += [part["text"] if part.get("type") == "text" else f"[{part.get('type')}]" for part in parts]
    return "\n".join(found)
