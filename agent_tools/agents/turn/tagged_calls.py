"""Calls between tags, one for each parameter, as Qwen3-Coder writes them. Pure parsing.

    <tool_call>
    <function=python>
    <parameter=code>
    print(6 * 7)
    </parameter>
    </function>
    </tool_call>

The format is that of the chat template of Qwen3-Coder and the models after it. A value is text as it stands, without
the line breaks next to its tags; what the function's schema says about it tells whether it is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_tools.messages import FunctionCall
from agent_tools.models.base import Json

OPENING = "<function="
_NAME = re.compile(r"<function=([^<>\s]{1,200})>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\s]{1,200})>")
_CLOSING = re.compile(r"\s*(?:</function>|$)\s*")
_PARAMETER_END = "</parameter>"
_TAG = re.compile(r"</?tool_call>")
_JSON_TYPES = frozenset(("integer", "number", "boolean", "object", "array", "null"))


def tagged_calls(text: str, schemas: Mapping[str, Json | None]) -> tuple[FunctionCall, ...]:
    """Read the calls that a text consists of, and nothing else.

    Raises:
        ValueError: it holds anything else.
    """
    return tuple(_calls(text, schemas))


def _calls(text: str, schemas: Mapping[str, Json | None]) -> Iterator[FunctionCall]:
    place = _skip(text, 0)
    while place < len(text):
        opening = _NAME.match(text, place)
        if opening is None:
            raise ValueError("not a call")
        types = _types(schemas.get(opening[1]))
        arguments, place = _arguments(text, opening.end(), types)
        yield FunctionCall(opening[1], json.dumps(arguments, ensure_ascii=False))
        place = _skip(text, place)


def _arguments(text: str, place: int, types: Mapping[str, frozenset[str]]) -> tuple[dict[str, Any], int]:
    """Read parameters up to the end of their function; return them, and the place after it."""
    found: dict[str, Any] = {}
    while opening := _PARAMETER.match(text, place):
        name = opening[1]
        end = text.find(_PARAMETER_END, opening.end())
        if end < 0:
            raise ValueError("a parameter without an end")
        found[name] = _value(text[opening.end() : end], types.get(name, frozenset()))
        place = _space(text, end + len(_PARAMETER_END))
    closing = _CLOSING.match(text, place)
    if closing is None:
        raise ValueError("not a parameter")
    return found, closing.end()


def _value(text: str, types: frozenset[str]) -> Any:
    text = text.removeprefix("\n").removesuffix("\n")
    if not types or "string" in types or not types & _JSON_TYPES:
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text  # the tool says what is wrong with it


def _types(schema: Json | None) -> dict[str, frozenset[str]]:
    """Return the JSON types of parameters, by name; nothing for those whose schema does not say."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): frozenset(_named(each)) for name, each in properties.items() if isinstance(each, Mapping)}


def _named(schema: Json) -> Iterator[str]:
    """Yield the types that a parameter's schema names, those of its alternatives included."""
    alternatives = [each for key in ("anyOf", "oneOf") if isinstance(each := schema.get(key), list)]
    for each in (schema, *(one for listed in alternatives for one in listed if isinstance(one, Mapping))):
        kinds = each.get("type")
        yield from (kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _skip(text: str, place: int) -> int:
    """Return the place after white space and tags. A loop: a pattern would remember every repetition."""
    place = _space(text, place)
    while tag := _TAG.match(text, place):
        place = _space(text, tag.end())
    return place


def _space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place
