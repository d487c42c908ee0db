"""Checks of arguments that a model or a sandbox wrote, by a JSON schema. A check costs a small multiple of their bytes.

Only keywords are checked whose cost is linear. `pattern` and `format` are matched by `re`, which may take the square of
a text, or longer, and lets no other thread run; `uniqueItems` may compare each item with each; a definition that
contains itself, below `anyOf`, doubles the cost with each level. A schema without these accepts more arguments, never
fewer: what they say is for the function to check. Parts of a schema that are invalid, or lie elsewhere, are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import fastjsonschema
from fastjsonschema.ref_resolver import resolve_path

MAX_DEPTH = 16  # levels of a schema that are checked: Python nests 20 blocks

_TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
_PLAIN = (str, bool, type(None))
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NO_TARGET = (fastjsonschema.JsonSchemaException, LookupError, TypeError, ValueError)


def argument_check(schema: dict[str, Any]) -> Callable[[Any], None]:
    """Return a function that checks arguments.

    It raises ValueError for arguments that do not match the schema, and says which.
    """
    checked = fastjsonschema.compile(_Linear(schema).whole(), use_default=False)

    def check(arguments: Any) -> None:
        try:
            checked(arguments)
        except fastjsonschema.JsonSchemaException as exc:
            raise ValueError(exc.message) from exc

    return check


class _Linear:
    """Rewrites a schema with the keywords that cost little, and definitions that do not contain themselves."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # of definitions, by reference; '' while one is being written
        self._definitions: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        return {**self._of(self._root, 0), "$defs": self._definitions}

    def _of(self, schema: Any, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return {}
        if "$ref" in schema:
            return self._referred(schema["$ref"], depth + 1)
        return dict((*_values(schema), *self._schemas(schema, depth + 1)))

    def _referred(self, reference: Any, depth: int) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return {}
        if reference not in self._names:
            self._names[reference] = ""
            try:
                target = resolve_path(self._root, reference.removeprefix("#"))
            except _NO_TARGET:
                target = {}
            written = self._of(target, depth)
            self._names[reference] = name = str(len(self._definitions))
            self._definitions[name] = written
        name = self._names[reference]
        return {"$ref": f"#/$defs/{name}"} if name else {}

    def _schemas(self, schema: dict[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the keywords that contain schemas. `oneOf` becomes `anyOf`: without the rest, several may match."""
        named = schema.get("properties")
        named = named if isinstance(named, dict) else {}
        yield "properties", {name: self._of(each, depth) for name, each in named.items()}
        others = self._of(schema.get("additionalProperties", True), depth)
        if others or (others is False and named.keys() >= set(_required(schema))):
            yield "additionalProperties", others if "patternProperties" not in schema else True
        items = schema.get("prefixItems", schema.get("items"))  # a list is the first items' in either draft
        if isinstance(items, list):
            yield "items", [self._of(each, depth) for each in items]
        elif items is not None:
            yield "items", self._of(items, depth)
        for old, new in (("allOf", "allOf"), ("oneOf", "anyOf"), ("anyOf", "anyOf")):
            if isinstance(schema.get(old), list) and schema[old]:
                yield new, [self._of(each, depth) for each in schema[old]]


def _values(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keywords that contain values."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and all(isinstance(each, str) and each in _TYPES for each in kinds):
        yield "type", kinds
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and all(isinstance(each, _PLAIN) or _is_number(each) for each in values):
        yield "enum", values
    yield "required", _required(schema)
    yield from ((key, schema[key]) for key in (*_BOUNDS, *_SIZES) if _is_number(schema.get(key)))


def _required(schema: dict[str, Any]) -> list[str]:
    names = schema.get("required")
    return list(dict.fromkeys(each for each in names if isinstance(each, str))) if isinstance(names, list) else []


def _is_number(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or (isinstance(value, float) and math.isfinite(value))
