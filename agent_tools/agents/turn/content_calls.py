"""Calls that a model wrote into its answer, as servers without a parser for its calls pass them on. Pure parsing.

Theory of operation. A call is a JSON object with `name` and `arguments`, `parameters` or `input`; there may be several
of them, or an array; plain, in a fence, or after a tag of the model's training (`<tool_call>`). Some models write each
parameter between tags instead (tagged_calls.py). An answer, or its end from a tag on, counts as calls only if nothing
else is in it and every function was declared. So a call that is quoted in prose stays prose.

`calls_in` decides about a complete text. `Gate` works while the answer arrives, and decides which text has to wait:

    start    the first characters may still become a call: nothing is let through yet
    holding  the answer opens like a call, or a tag has come: the rest is kept for `calls_in`
    open     the answer is text: it is let through, except for a tail that may be the beginning of a tag

Text that waits in vain costs the reader some delay: it is shown at the end, if `calls_in` finds no calls in it. A call
that is let through would be shown as text, and never be made. So text waits while in doubt, but no more than
`_MAX_UNDECIDED` characters of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from agent_tools.agents.turn.call_opening import opens_call
from agent_tools.agents.turn.tagged_calls import OPENING, tagged_calls
from agent_tools.code_reader import kept_backslashes
from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json

_TAGS = ("<tool_call>", "<|python_tag|>", OPENING)
_END_MARKS = ("</tool_call>", "<|eom_id|>", "<|eot_id|>")
_FENCE_OPENING = re.compile(r"```[a-z_]*[ \t]*\r?\n")
_BETWEEN = re.compile(r"(?:[\s;,]+|</tool_call>|<tool_call>|<\|python_tag\|>)*")
_MAX_UNDECIDED = 1_000  # characters at an answer's beginning that are held back while they may still become a call
_DECODER = json.JSONDecoder(strict=False)
_ARGUMENTS = ("arguments", "parameters", "input")

_GateState = Literal["start", "holding", "open"]


def calls_in(
    text: str, declared: Container[str], schemas: Mapping[str, Json | None] = MappingProxyType({})
) -> tuple[FunctionCall, ...]:
    """Return the calls that a text consists of; () if it holds anything else, or a function that is not declared.

    `schemas` are those of the functions' parameters, by which text between tags becomes JSON.
    """
    body = _inside_fence(_without_end_marks(text).lstrip())
    try:
        is_tagged = body.startswith(OPENING, _skip(body, 0))
        calls = tagged_calls(body, schemas) if is_tagged else _json_calls(body)
    except (ValueError, RecursionError):
        return ()
    return calls if all(call.name in declared for call in calls) else ()


class Gate:
    """Lets an answer through while it arrives, but holds back text that may turn out to be calls.

    `declared` are the functions that may be called; None stands for any.
    """

    def __init__(self, declared: Container[str] | None = None) -> None:
        self._declared = declared
        self._held: list[str] = []
        self._state: _GateState = "start"

    def feed(self, text: str) -> str:
        """Take a piece of the answer, and return the text that may be shown now."""
        self._held.append(text)
        if self._state == "holding":
            return ""
        held = "".join(self._held)
        if self._state == "start":
            opens = opens_call(held[: _MAX_UNDECIDED + 1], self._declared)
            if opens is None and len(held) <= _MAX_UNDECIDED:
                return ""
            self._state = "holding" if opens else "open"
        cut = 0 if self._state == "holding" else _tag_at(held)
        self._held = [held[cut:]]
        if any(held.startswith(tag, cut) for tag in _TAGS):
            self._state = "holding"
        return held[:cut]

    def rest(self) -> str:
        """Return the text that is held back."""
        return "".join(self._held)


def _without_end_marks(text: str) -> str:
    """Return a text without the white space and the marks at its end.

    A loop instead of a pattern, which would start a new match at every place: quadratic in a hostile answer.
    """
    end = len(text)
    while end:
        mark = next((mark for mark in _END_MARKS if text.endswith(mark, 0, end)), "")
        if not mark and not text[end - 1].isspace():
            break
        end -= len(mark) or 1
    return text[:end]


def _inside_fence(text: str) -> str:
    """Return the content of a text that is one fence; any other text as it is."""
    opening = _FENCE_OPENING.match(text)
    if not opening or not text.endswith("```") or len(text) < opening.end() + 3:
        return text
    return text[opening.end() : -3].rstrip(" \t").removesuffix("\n")


def _tag_at(text: str) -> int:
    """Return the place where a tag begins, or where the text's end may be the beginning of one; else its length."""
    starts = [text.find(tag) for tag in _TAGS]
    found = [start for start in starts if start >= 0]
    if found:
        return min(found)
    for length in range(min(len(text), max(map(len, _TAGS)) - 1), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in _TAGS):
            return len(text) - length
    return len(text)


def _json_calls(text: str) -> tuple[FunctionCall, ...]:
    """Read the calls of a text; backslashes that are no escapes in JSON are kept, as in arguments of other calls."""
    try:
        return tuple(map(_call, _values(text)))
    except ValueError:
        return tuple(map(_call, _values(kept_backslashes(text))))


def _values(text: str) -> Iterator[Any]:
    """Read the JSON values that a text consists of, those of an array one by one."""
    position = _skip(text, 0)
    if position == len(text):
        raise ValueError("nothing there")
    while position < len(text):
        value, end = _DECODER.raw_decode(text, position)
        if isinstance(value, list) and value:
            yield from value
        else:
            yield value
        position = _skip(text, end)


def _skip(text: str, position: int) -> int:
    found = _BETWEEN.match(text, position)
    return found.end() if found else position


def _call(value: Any) -> FunctionCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("not a call")
    given = [value[key] for key in _ARGUMENTS if key in value]
    if len(given) != 1 or not (given[0] is None or isinstance(given[0], (dict, str))):
        raise ValueError("not a call")
    arguments = given[0] if isinstance(given[0], str) else json.dumps(given[0] or {}, ensure_ascii=False)
    return FunctionCall(value["name"], arguments)
