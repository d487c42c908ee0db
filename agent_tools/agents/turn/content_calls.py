"""Calls that a model wrote into its answer, as servers without a parser for its calls pass them on. Pure parsing.

Theory of operation. Calls have several forms: call_forms.py. An answer, or its end from a call's first token on, counts
as calls only if nothing else is in it and every function was declared. So a call that is quoted in prose stays prose.

`calls_in` decides about a complete text. `Gate` works while the answer arrives, and decides which text has to wait:

    start    the first characters may still become a call: nothing is let through yet
    holding  a call has begun, by its head: the rest is kept for `calls_in`
    open     the answer is text: it is let through, except for a tail that may be the beginning of a call

Text that waits in vain costs the reader some delay: it is shown at the end, if `calls_in` finds no calls in it. A call
that is let through would be shown as text, and never be made. So text waits while in doubt, but no more than
`MAX_UNDECIDED` characters of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from agent_tools.agents.turn.call_forms import FORMS, TOKENS, behind_mark, declared_name, read_calls
from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json

_OPENINGS = (*TOKENS, "```json", "```tool_call", "```tool_code")
_OPENING = re.compile("|".join(r"(?<![^\n])" * (each[0] == "`") + re.escape(each) for each in _OPENINGS))
_FENCE_OPENING = re.compile(r"```[a-z_]*[ \t]*\r?\n")

_GateState = Literal["start", "holding", "open"]


def calls_in(
    text: str, declared: Mapping[str, object], schemas: Mapping[str, Json | None] = MappingProxyType({})
) -> tuple[FunctionCall, ...]:
    """Return the calls that a text consists of; () if it holds anything else, or a function that is not declared.

    `declared` are the functions, with whether they run code; `schemas` are those of their parameters, by which text
    between tags becomes JSON.
    """
    try:
        return read_calls(_inside_fence(text.strip()), declared, schemas)
    except (ValueError, RecursionError):
        return ()


class Gate:
    """Lets an answer through while it arrives, but holds back text that may turn out to be calls.

    `declared` are the functions that may be called; None stands for any.
    """

    def __init__(self, declared: Mapping[str, object] | None = None) -> None:
        self._declared = declared
        self._held: list[str] = []
        self._shown = ""  # the last character: fences stand at the beginning of a line
        self._state: _GateState = "start"

    def feed(self, text: str) -> str:
        """Take a piece of the answer, and return the text that may be shown now."""
        self._held.append(text)
        if self._state == "holding":
            return ""
        known = len(self._shown)
        held = "".join((self._shown, *self._held))
        cut = 0
        if self._state == "open" or not self._may_begin(held, 0):
            self._state = "open"
            cut = self._beginning(held, known)
            self._shown = held[cut - 1 : cut]
        self._held = [held[cut:]]
        return held[known:cut]

    def _beginning(self, text: str, place: int) -> int:
        """Return the place where a call begins, or may begin; else the text's length."""
        while found := _OPENING.search(text, place):
            if self._may_begin(text, found.start()):
                return found.start()
            place = found.end()
        return _tail(text, place)

    def _may_begin(self, text: str, place: int) -> bool:
        opens = opens_call(text[place : place + MAX_UNDECIDED + 1], self._declared)
        if opens:
            self._state = "holding"
        return opens or (opens is None and len(text) - place <= MAX_UNDECIDED)

    def rest(self) -> str:
        """Return the text that is held back."""
        return "".join(self._held)


def _inside_fence(text: str) -> str:
    """Return the content of a text that is one fence; any other text as it is."""
    opening = _FENCE_OPENING.match(text)
    if not opening or not text.endswith("```") or len(text) < opening.end() + 3:
        return text
    return text[opening.end() : -3].rstrip(" \t").removesuffix("\n")


def _tail(text: str, start: int) -> int:
    """Return the place from which a text's end may be the beginning of an opening; its length if there is none."""
    tick = text.rfind("`", start)
    tick = next((place for place in range(max(start, tick - 2), tick) if text[place : tick + 1].strip("`") == ""), tick)
    ends = [text.rfind("<", start), text.rfind("[", start), tick if text[tick - 1 : tick] in ("", "\n") else -1]
    return min(
        (end for end in ends if end >= start and any(opening.startswith(text[end:]) for opening in _OPENINGS)),
        default=len(text),
    )


# The opening of a text: may it become a call? Pure, and of the first characters only.
#
# A call in JSON is an object whose first key is one of a call's keys, with a value that a call has there; alone, in an
# array, or in a fence. JSON of any other kind is an answer, and need not wait for its end to be told from a call.
# Calls
# in other forms (call_forms.py) have the function's name in their head.


MAX_UNDECIDED = 1_000  # characters that are held back while they may still become a call

_MAX_HEAD = 500  # characters from a token to the arguments
_NO_CALL = "<|message|>"  # ends a head; found where no head has matched
_NAME = re.compile(r"[\w.:/-]{1,200}\s*")
_LANGUAGES = ("", "json", "tool_call", "tool_code")
_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:\s*')
_SCALAR = re.compile(r'"([^"\\]*)"\s*|[\w.+-]+\s*(?=,)')
_TYPES = ("function", "function_call", "tool_call", "tool_use")
_OBJECT_OR_TEXT = ("arguments", "parameters", "input")


def opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    """Return whether an answer with this beginning may be a call; None while undecided.

    `declared` are the functions that may be called; None stands for any.
    """
    text = text.lstrip()
    if not text or "```".startswith(text[:3]):
        return _fence_opens_call(text[3:], declared) if len(text) > 2 else None
    while True:
        head = next(filter(None, (form.head.match(text) for form in FORMS[:-1])), None)
        if head:
            return _is_declared(head["name"], declared)
        if text[0] in "{[" and (opens := _json_opens_call(text, declared)) is not False:
            return opens
        if not any(text.startswith(token) or token.startswith(text) for token in TOKENS) or _NO_CALL in text:
            return False
        inside = text[behind_mark(text, 0) :].lstrip()
        if not inside or len(inside) == len(text) or _NAME.match(inside):
            return None if len(text) < _MAX_HEAD else False
        text = inside


def _json_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    if text[0] == "{":
        return _object_opens_call(text, declared)
    inside = text[1:].lstrip()
    if not inside:
        return None
    if inside[0] == "{":
        return _object_opens_call(inside, declared)
    return None if _NAME.fullmatch(inside) else False


def _fence_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    language, newline, inside = text.partition("\n")
    if not newline:
        return None if any(known.startswith(language.strip()) for known in _LANGUAGES) else False
    if language.strip() not in _LANGUAGES:
        return False
    return opens_call(inside, declared) if inside.strip()[:1] in ("{", "[") else (False if inside.strip() else None)


def _object_opens_call(text: str, declared: Mapping[str, object] | None) -> bool | None:
    """Look at an object's first key and value, or at the second if the first is an id."""
    begun = text[1:].lstrip()
    if begun and begun[0] != '"':
        return False
    place = 0
    for _ in range(2):
        found = _KEY.match(text, place)
        if found is None:
            return None
        if found[1] != "id":
            return _value_opens_call(found[1], text[found.end() :], declared)
        scalar = _SCALAR.match(text, found.end())
        if scalar is None or scalar.end() == len(text):
            return None
        place = scalar.end()
    return False


def _value_opens_call(key: str, value: str, declared: Mapping[str, object] | None) -> bool | None:
    if key not in ("name", "type", "function", *_OBJECT_OR_TEXT):
        return False
    if not value:
        return None
    if key == "function":
        return value[0] == "{"
    if key in _OBJECT_OR_TEXT:
        return value[0] in '{"n'
    text, closing, _ = value[1:].partition('"')
    if value[0] != '"':
        return False
    if key == "type":
        return text in _TYPES if closing else None
    return _is_declared(text, declared) if closing else None


def _is_declared(name: str, declared: Mapping[str, object] | None) -> bool:
    return declared is None or declared_name(name, declared) in declared
