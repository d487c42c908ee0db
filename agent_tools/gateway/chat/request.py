"""A request for a chat completion, read if its code is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields
from agent_tools.models.base import JsonObject

_OURS = ("messages", "tools", "model", "stream", "stream_options", "n", "functions", "function_call")


@dataclass(frozen=True)
class ChatRequest:
    """A completion whose calls of `ours` are run here; `others` are the client's functions."""

    model: str
    messages: list[JsonObject]
    ours: tuple[JsonObject, ...]
    others: tuple[JsonObject, ...]
    options: Mapping[str, Any]
    stream: bool
    with_usage: bool


def read_chat_request(body: Mapping[str, Any], routed: Sequence[str]) -> ChatRequest | None:
    """Check a request; return None if it declares no function that is run here, and is only passed on.

    Raises:
        ApiError: 400; `param` names the field.
    """
    tools = body.get("tools")
    declared = [tool["function"] for tool in tools if _is_function(tool)] if isinstance(tools, list) else []
    ours = tuple(function for function in declared if function["name"] in routed)
    if not ours:
        return None
    given = Fields(body)
    if given.integer("n", 1) not in (None, 1):
        raise invalid("Only one choice is possible where code runs: set 'n' to 1.", "n", "unsupported_value")
    messages = given.array("messages")
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise invalid("'messages' is an array of one or more objects.", "messages")
    return ChatRequest(
        model=given.needed("model"),
        messages=messages,
        ours=ours,
        others=tuple(function for function in declared if function["name"] not in routed),
        options=_others(body),
        stream=bool(given.flag("stream")),
        with_usage=bool((given.object("stream_options") or {}).get("include_usage")),
    )


def _others(body: Mapping[str, Any]) -> JsonObject:
    """Return the client's other fields, for the upstream's body; one called `extra_body` is a field like any other."""
    fields = {key: value for key, value in body.items() if key not in _OURS}
    return {**fields, "extra_body": {"extra_body": fields["extra_body"]}} if "extra_body" in fields else fields


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])
