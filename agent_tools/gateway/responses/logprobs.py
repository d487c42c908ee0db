"""The log probabilities of a message's tokens, from the shape of chat completions to that of responses. Pure.

A server's numbers are read as it gave them; what JSON cannot carry is LOWEST, the number that servers use for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from agent_tools.models.base import Json, JsonObject

LOWEST = -9999.0
MAX_ALTERNATIVES = 20  # for one token, as the API has it


def shown_logprobs(tokens: Iterable[Json], *, with_bytes: bool) -> list[JsonObject]:
    """Return tokens as an event has them, or `with_bytes`, as the finished text has them."""
    return [{**_token(each, with_bytes), "top_logprobs": _alternatives(each, with_bytes)} for each in tokens]


def _alternatives(token: Json, with_bytes: bool) -> list[JsonObject]:
    listed = token.get("top_logprobs")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [_token(each, with_bytes) for each in found[:MAX_ALTERNATIVES]]


def _token(token: Json, with_bytes: bool) -> JsonObject:
    text = str(token.get("token") or "").encode("utf-8", "replace").decode()
    shown: JsonObject = {"token": text, "logprob": _number(token.get("logprob"))}
    return {**shown, "bytes": _bytes(token.get("bytes"), text)} if with_bytes else shown


def _number(value: Any) -> float:
    return value if type(value) in (int, float) and math.isfinite(value) else LOWEST


def _bytes(given: Any, text: str) -> list[int]:
    if isinstance(given, list) and all(type(each) is int and 0 <= each < 256 for each in given):
        return given
    return list(text.encode())
