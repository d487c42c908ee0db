"""A request as one server wants it: the same conversation and fields, put in its dialect. Pure.

A request comes with an assistant's reasoning in `reasoning_content`, the limit on tokens under either name, and all
system messages where they were said; see profile.py for what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM
from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.profile import Profile

REASONING = "reasoning_content"
"""The field in which a conversation keeps an assistant's reasoning, whatever a server calls it."""
BLANK = " "
"""Reasoning that is not known: servers that insist on it take an empty string for none."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_LEADS = (SYSTEM, DEVELOPER)


def phrased(request: Json, profile: Profile) -> JsonObject:
    """Return the request in a server's dialect; the one that is given stays as it is."""
    fields = {name: value for name, value in request.items() if name not in profile.left_out}
    for name in _LIMITS:
        if name in fields and name != profile.max_tokens:
            value = fields.pop(name)
            fields.setdefault(profile.max_tokens, value)
    messages = _one_leading(request["messages"], profile)
    return {**fields, "messages": [_with_reasoning(each, profile) for each in messages if not _is_empty(each, profile)]}


def _one_leading(messages: Sequence[JsonObject], profile: Profile) -> list[JsonObject]:
    """Join the system messages at the beginning, or all of them, into one."""
    first = next((n for n, each in enumerate(messages) if each.get("role") not in _LEADS), len(messages))
    leading, rest = list(messages[:first]), list(messages[first:])
    if profile.system == "first":
        leading += [each for each in rest if each.get("role") in _LEADS]
        rest = [each for each in rest if each.get("role") not in _LEADS]
    if not leading:
        return rest
    role = SYSTEM if profile.system == "first" else leading[0]["role"]
    return [{**leading[0], "role": role, "content": _joined([each.get("content") for each in leading])}, *rest]


def _joined(contents: Iterable[Any]) -> Any:
    """Join the contents of messages: texts as paragraphs; if any has parts, all as parts."""
    said = [content for content in contents if content]
    if all(isinstance(content, str) for content in said):
        return "\n\n".join(said)
    if len(said) == 1:
        return said[0]
    parts: list[Any] = []
    for content in said:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    if all(_is_text(part) for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_empty(message: JsonObject, profile: Profile) -> bool:
    """Tell a message that has nothing but reasoning, where reasoning is not sent."""
    if message.get("role") != ASSISTANT or REASONING not in message or profile.reasoning != "none":
        return False
    return not message.get("content") and not message.get("tool_calls")


def _with_reasoning(message: JsonObject, profile: Profile) -> JsonObject:
    """Put an assistant's reasoning where the server looks for it."""
    if message.get("role") != ASSISTANT:
        return message
    reasoning = message.get(REASONING)
    if profile.blanks == "filled" and message.get("tool_calls") and not reasoning:
        reasoning = message.get(profile.reasoning) or BLANK
    if reasoning is None or (profile.reasoning == REASONING and reasoning == message.get(REASONING)):
        return message
    rest = {name: value for name, value in message.items() if name != REASONING}
    return rest if profile.reasoning == "none" else {**rest, profile.reasoning: reasoning}
