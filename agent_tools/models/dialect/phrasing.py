"""Converts a request to one server's dialect: the same conversation and fields. Pure.

A request comes with an assistant's reasoning in `reasoning_content`, the limit on tokens under either name, and all
system messages where they were said; see profile.py for what becomes of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM, TOOL, USER
from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.profile import UpstreamProfile
from agent_tools.models.dialect.prompted_tools import prompted

REASONING = "reasoning_content"
"""The field in which a conversation keeps an assistant's reasoning, whatever a server calls it."""
BLANK = " "
"""Reasoning that is not known: servers that insist on it take an empty string for none."""
DEFAULT_LIMIT = 8_192
"""Tokens of a reply, for servers that want a limit where the client has set none."""
BETWEEN = "I look at the result."
"""Words of an assistant between a tool's result and a user's message, for chat templates that want some there."""
NO_PICTURES = "(Pictures were left out: the model reads none.)"
_NOTE = re.compile(r"\s*[(（][^()（）]{0,100}[)）]\s*")
_LIMITS = ("max_tokens", "max_completion_tokens")
_LEADS = (SYSTEM, DEVELOPER)
OF_TOOLS = "tools."
"""Begins what a profile leaves out of tools' definitions."""
BY_NAME = frozenset(("properties", "$defs", "definitions"))
"""Keywords of JSON Schema whose objects have names as keys."""


def phrased(request: Json, profile: UpstreamProfile) -> JsonObject:
    """Return the request in a server's dialect; the given request is not changed."""
    fields = {name: value for name, value in request.items() if name not in profile.left_out}
    for name in _LIMITS:
        if name in fields and name != profile.max_tokens:
            value = fields.pop(name)
            fields.setdefault(profile.max_tokens, value)
    if profile.limit == "required":
        fields.setdefault(profile.max_tokens, DEFAULT_LIMIT)
    if profile.choice == "auto" and fields.get("tool_choice") not in (None, "none"):
        fields["tool_choice"] = "auto"
    fields["messages"] = _one_leading(request["messages"], profile)
    if keywords := frozenset(name.removeprefix(OF_TOOLS) for name in profile.left_out if name.startswith(OF_TOOLS)):
        fields.update({"tools": [_without(tool, keywords) for tool in fields["tools"]]} if "tools" in fields else {})
    return _with_messages(fields, profile)


def _with_messages(fields: JsonObject, profile: UpstreamProfile) -> JsonObject:
    """Return a request with its messages as the server wants them."""
    messages = [_with_reasoning(each, profile) for each in fields["messages"] if not _is_empty(each, profile)]
    if profile.pictures == "none":
        messages = list(_without_figures(messages))
    if profile.tools == "prompted" or (profile.tools == "declared" and not fields.get("tools")):
        fields = prompted({**fields, "messages": messages})
        messages = fields["messages"]
    if profile.roles == "merged":
        messages = _in_turns(messages)
    if profile.empty == "none":
        messages = [
            {**each, "content": each.get("content") or None} if each.get("tool_calls") else each for each in messages
        ]
    if profile.ids == "nine":
        messages = [_with_short_ids(each) for each in messages]
    if profile.calls == "single":
        messages = list(_one_call_each(messages))
    return {**fields, "messages": messages}


def _one_leading(messages: Sequence[JsonObject], profile: UpstreamProfile) -> list[JsonObject]:
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
    found = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    texts = [text for text in found if isinstance(text, str)]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts


def _is_empty(message: JsonObject, profile: UpstreamProfile) -> bool:
    """Return whether a message has only reasoning, which is not sent to this server."""
    if message.get("role") != ASSISTANT or REASONING not in message or profile.reasoning != "none":
        return False
    return not message.get("content") and not message.get("tool_calls")


def _with_reasoning(message: JsonObject, profile: UpstreamProfile) -> JsonObject:
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


def _without_figures(messages: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Leave out pictures of a user's message right after a tool's result: figures of code, and what the tool read.

    The message goes with them, unless it has a text of the user, which ends in a note then.
    """
    before = None
    for each in messages:
        if not (before == TOOL and each.get("role") == USER and _shows(each)):
            yield each
        elif own := [part for part in each["content"] if not _is_of_figures(part)]:
            yield {**each, "content": _joined([own, NO_PICTURES])}
        before = each.get("role")


def _is_of_figures(part: Any) -> bool:
    """Return whether a part is a picture, or a text in parentheses: our note beside pictures."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind == "image_url" or (kind == "text" and _NOTE.fullmatch(str(part.get("text"))) is not None)


def _shows(message: JsonObject) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "image_url" for part in content
    )


def _in_turns(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Put messages in the order that strict chat templates want: user, assistant (with its tools' results), user."""
    turns: list[tuple[JsonObject, list[Any]]] = []  # each with the contents of its messages
    for each in messages:
        message = {**each, "role": USER} if each.get("role") in _LEADS else each
        role, content = message.get("role"), message.get("content")
        last, contents = turns[-1] if turns else ({}, [])
        if role in (USER, ASSISTANT) and role == last.get("role") and not last.get("tool_calls"):
            turns[-1] = {**last, **message}, contents
            contents.append(content)
            continue
        if role == USER and last.get("role") == TOOL:
            turns.append(({"role": ASSISTANT, "content": BETWEEN}, [BETWEEN]))
        turns.append((message, [content]))
    return [{**turn, "content": _joined(contents)} if len(contents) > 1 else turn for turn, contents in turns]


def _one_call_each(messages: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield a message for each call, followed by its result, where a message has several calls."""
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = []
        while place < len(messages) and messages[place].get("role") == TOOL:
            results.append(messages[place])
            place += 1
        by_id = {each.get("tool_call_id"): each for each in results}
        for number, call in enumerate(calls):
            yield {**message, "content": "" if number else message.get("content"), "tool_calls": [call]}
            if (result := by_id.pop(call.get("id"), None)) is not None:
                yield result
        yield from by_id.values()


def _without(value: Any, keywords: frozenset[str]) -> Any:
    """Return a tool without these keywords of its definition; names of parameters are none."""
    if isinstance(value, list):
        return [_without(each, keywords) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: each for name, each in value.items() if name.lower() not in keywords}
    maps = {name for name, each in found.items() if isinstance(each, dict)}
    named = {name: {key: _without(each, keywords) for key, each in found[name].items()} for name in BY_NAME & maps}
    return {name: named[name] if name in named else _without(each, keywords) for name, each in found.items()}


def _with_short_ids(message: JsonObject) -> JsonObject:
    """Replace the ids of calls and results alike: Mistral takes nine letters and digits only."""
    if "tool_call_id" in message:
        message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        message = {**message, "tool_calls": [{**call, "id": _short_id(call.get("id"))} for call in calls]}
    return message


def _short_id(id_: Any) -> str:
    return hashlib.sha256(str(id_).encode("utf-8", "surrogatepass")).hexdigest()[:9]
