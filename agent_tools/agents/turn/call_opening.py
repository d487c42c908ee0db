"""The opening of a text: may it become a call? Pure, and of the first characters only.

A call in JSON is an object whose first key is one of a call's keys, with a value that a call has there; alone, in an
array, or in a fence. JSON of any other kind is an answer, and need not wait for its end to be told from a call. Calls
in other forms (call_forms.py) have the function's name in their head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent_tools.agents.turn.call_forms import FORMS, TOKENS, behind_mark, declared_name

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
