"""The tokens that a request's input takes: as the upstream counts them, else an estimate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject

BYTES_PER_TOKEN = 4  # of UTF-8: what OpenAI tells of English, and near it for most other scripts
PER_MESSAGE = 4  # tokens around each message
MAX_ANSWER = 16 * MIB  # bytes of the upstream's answer, which may list every token
MAX_COUNT = 2**53


def read_count(answer: bytes) -> int | None:
    """Return the `count` of an answer of vLLM's /tokenize; None if it holds none."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    count = value.get("count") if isinstance(value, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < MAX_COUNT else None


def estimate(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> int:
    """Estimate the tokens of messages and definitions by their text; pictures and sound are left out."""
    size = sum(len(text.encode("utf-8", "replace")) for text in _texts([*messages, *tools]))
    return size // BYTES_PER_TOKEN + PER_MESSAGE * len(messages)


def _texts(values: Sequence[Any]) -> Iterator[str]:
    """Yield all texts in values of JSON, but for data and where it lies."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += (each for name, each in value.items() if name not in ("image_url", "input_audio", "file"))
        elif isinstance(value, list):
            pending += value
