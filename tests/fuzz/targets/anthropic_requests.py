"""Bodies of `/v1/messages` as they are translated for an upstream that has only chat completions.

The input is a program (see unfold.py) for the body's value; `R` as first byte: the body itself.
"""

from __future__ import annotations

import contextlib
from typing import Any

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.gateway.anthropic.request import read_messages_request
from agent_tools.gateway.http import parsed
from agent_tools.gateway.requests.api_errors import ApiError
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

WORDS = ("model", "messages", "role", "user", "assistant", "content", "type", "text", "system", "max_tokens", "stream")
WORDS += ("tools", "name", "input_schema", "description", "tool_choice", "auto", "any", "tool", "none", "custom")
WORDS += ("tool_use", "tool_result", "tool_use_id", "id", "input", "is_error", "image", "document", "source", "base64")
WORDS += ("media_type", "image/png", "application/pdf", "data", "YQ==", "url", "https://x", "thinking", "disabled")
WORDS += ("budget_tokens", "signature", "redacted_thinking", "stop_sequences", "disable_parallel_tool_use", "metadata")
WORDS += ("code_execution_20250825", "web_search_20250305", "cache_control", "ephemeral", "temperature", "top_k")


def unfold_body(data: bytes) -> Parts:
    """The body."""
    if data[:1] == b"R":
        return [unfold.text(data[1:], MIB)]
    return [unfold.as_json(unfold.value(data[1:], WORDS))]


def read_body(parts: Parts) -> None:
    """Translate it: each message has a role that chat completions know, and each result the call that it answers."""
    body: dict[str, Any] = parsed(parts[0])
    with contextlib.suppress(ApiError):
        read_messages_request({"max_tokens": 1, **body}, ignores_tools=True)
    request = read_messages_request(body, ignores_tools=False)
    assert {each["role"] for each in request.messages} <= {"system", "user", "assistant", "tool"}
    assert all(isinstance(each["tool_call_id"], str) for each in request.messages if each["role"] == "tool")


TARGET = Target(
    read_body,
    unfold_body,
    allowed=(ApiError, BodyRefused),
    bound=Bound(seconds_per_byte=4e-6, bytes=8 * MIB, bytes_per_byte=24),
    vocabulary=WORDS,
    words=(b'{"model": "m", "max_tokens": 9, "messages": [', b"[],", b"{},", b'"a": ', b"]}", b"\\ud800", b"1e999"),
)
