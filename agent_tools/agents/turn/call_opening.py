"""The opening of an answer: may it become a call, written as JSON? Pure, and of the first characters only.

A call is an object whose first key is one of a call's keys, with a value that a call has there; alone, in an array, or
in a fence. JSON of any other kind is an answer, and need not wait for its end to be told from a call.
"""

from __future__ import annotations

import re
from collections.abc import Container

_LANGUAGES = ("", "json", "tool_call", "tool_code")
_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:\s*')
_SCALAR = re.compile(r'"([^"\\]*)"\s*|[\w.+-]+\s*(?=,)')
_TYPES = ("function", "function_call", "tool_call", "tool_use")
_OBJECT_OR_TEXT = ("arguments", "parameters", "input")


def opens_call(text: str, declared: Container[str] | None) -> bool | None:
    """Return whether an answer with this beginning may be a call; None while undecided.

    `declared` are the functions that may be called; None stands for any.
    """
    text = text.lstrip()
    if text.startswith("```"):
        return _fence_opens_call(text[3:], declared)
    if text == "```"[: len(text)]:
        return None
    if text[0] == "[":
        inside = text[1:].lstrip()
        return None if not inside else inside[0] == "{" and _object_opens_call(inside, declared)
    return text[0] == "{" and _object_opens_call(text, declared)


def _fence_opens_call(text: str, declared: Container[str] | None) -> bool | None:
    language, newline, inside = text.partition("\n")
    if not newline:
        return None if any(known.startswith(language.strip()) for known in _LANGUAGES) else False
    if language.strip() not in _LANGUAGES:
        return False
    return opens_call(inside, declared) if inside.strip()[:1] in ("{", "[") else (False if inside.strip() else None)


def _object_opens_call(text: str, declared: Container[str] | None) -> bool | None:
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


def _value_opens_call(key: str, value: str, declared: Container[str] | None) -> bool | None:
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
    return (declared is None or text in declared) if closing else None
