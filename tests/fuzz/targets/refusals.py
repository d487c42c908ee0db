"""A server's refusal of a request: its words, and what they teach.

The input is a program (see unfold.py) of the body of the refusal; `R` as first byte: the words themselves.
"""

from __future__ import annotations

import json
from typing import Any

from agent_tools.models.dialect.lesson import MAX_LESSONS, OPTIONAL, lesson
from agent_tools.models.dialect.profile import UpstreamProfile
from agent_tools.models.server_errors import words_of
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

WORDS = ("error", "message", "detail", "msg", "loc", "type", "unsupported", "missing", "extra inputs", "not permitted")
WORDS += ("max_tokens", "max_completion_tokens", "reasoning_content", "reasoning", "unexpected role", *OPTIONAL)
WORDS += ("System message must be at the beginning.", "developer role", "unknown", "'", "`", ".")
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "", "reasoning_content": "c", "tool_calls": [{"id": "1"}]},
    {"role": "developer", "content": "d"},
]
REQUEST = {"messages": MESSAGES, "max_tokens": 5, **dict.fromkeys(OPTIONAL, "a")}


def unfold_refusal(data: bytes) -> Parts:
    """The body as JSON."""
    if data[:1] == b"R":
        return [json.dumps(unfold.text(data[1:]).decode("utf-8", "replace")).encode()]
    return [unfold.as_json(unfold.value(data, WORDS))]


def learn(parts: Parts) -> None:
    """Learn of it for as long as it teaches something, which ends."""
    words, profile, lessons = words_of(json.loads(parts[0])), UpstreamProfile(), 0
    while (taught := lesson(profile, REQUEST, words)) is not None:
        assert taught != profile
        profile, lessons = taught, lessons + 1
        if lessons == MAX_LESSONS:
            return


TARGET = Target(
    learn,
    unfold_refusal,
    allowed=(RecursionError,),
    vocabulary=WORDS,
    words=tuple(word.encode() for word in WORDS),
)
