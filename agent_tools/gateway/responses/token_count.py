"""The tokens of a request's input: counted by the upstream, else estimated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from agent_tools.gateway.upstream import Upstream
from agent_tools.limits import MIB
from agent_tools.models.base import JsonObject

BYTES_PER_TOKEN = 4  # of UTF-8: what OpenAI tells of English, and near it for most other scripts
PER_MESSAGE = 4  # tokens around each message
MAX_ANSWER = 16 * MIB  # bytes of the upstream's answer, which may list every token
MAX_COUNT = 2**53


async def count_tokens(
    upstream: Upstream,
    headers: Mapping[str, str],
    model: str,
    messages: Sequence[JsonObject],
    tools: Sequence[JsonObject],
) -> tuple[int, str]:
    """Return the tokens of messages and definitions, and who counted: `upstream`, or `estimate`."""
    sent = {"model": model, "messages": messages, "tools": tools or None, "add_generation_prompt": True}
    answer = await upstream.ask("tokenize", headers, sent, MAX_ANSWER)
    count = await run_in_threadpool(read_count, answer) if answer else None
    if count is not None:
        return count, "upstream"
    return await run_in_threadpool(estimate, messages, tools), "estimate"


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
