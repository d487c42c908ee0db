"""Check an argument by its annotation: by pydantic alone for small values, interruptibly for large ones.

pydantic checks a value without releasing the interpreter's lock, so no other thread runs meanwhile. It also collects
every error, and builds sets of integers that may all have one hash: a set of 20,000 such integers takes it 15 s on a
busy machine, and is rejected here in 7 ms. For large values its schema is therefore rewritten: before each part a
function of this module runs, which lets other threads run and stops when the call has ended; the first error ends a
list, a set or a dict; guest/wire/budget.py builds sets and dicts from the checked parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_tools.extras import extra
from agent_tools.guest.wire.budget import MAX_PARTS, dict_of, set_of
from agent_tools.json_parts import has_more_parts
from agent_tools.runtime.host_calls.aside import look_up

with extra("code-mode"):
    import pydantic
    import pydantic_core
    from pydantic_core import core_schema

LARGE_PARTS = 1_000  # parts of a value, in all its levels, above which it is large
LARGE_TEXT = 64 * 1024  # characters of a text in it, above which it is large

_NO_SCHEMAS = ("metadata", "serialization", "default", "expected", "config", "cls", "function")
_LISTS = (list, tuple, set, frozenset)

CoreSchema = dict[str, Any]


class ArgumentCheck:
    """Checks values by the adapter of an annotation."""

    def __init__(self, adapter: pydantic.TypeAdapter[Any]) -> None:
        self._adapter = adapter
        self._patient: pydantic_core.SchemaValidator | None = None

    def of(self, value: Any) -> Any:
        """Return the value, converted to its annotation.

        Raises:
            pydantic.ValidationError: it does not match. GivenUp: it is large, and the call has ended.
        """
        if not _is_large(value):
            return self._adapter.validate_python(value)
        if self._patient is None:
            self._patient = _validator(patient(self._adapter.core_schema))
        return self._patient.validate_python(value)


def _is_large(value: Any) -> bool:
    """Return whether a value has too many parts, or too long a text, to be checked in one piece."""
    if not isinstance(value, (str, bytes, dict, *_LISTS)):
        return False
    waiting, seen = [value], 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, (str, bytes)) and len(each) > LARGE_TEXT:
            return True
        if isinstance(each, (dict, *_LISTS)):
            seen += len(each)
            if seen > LARGE_PARTS:
                return True
            waiting.extend(each)
            waiting.extend(each.values() if isinstance(each, dict) else ())
    return False


def _validator(schema: Any) -> pydantic_core.SchemaValidator:
    make: Callable[..., pydantic_core.SchemaValidator] = pydantic_core.SchemaValidator
    try:
        return make(schema, None, _use_prebuilt=False)  # prebuilt validators of models would check them in one piece
    except TypeError:  # an older pydantic, without prebuilt validators
        return make(schema)


def patient(schema: Any) -> Any:
    """Return a core schema with the functions of this module in it."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(patient(each) for each in schema)
    if not isinstance(schema, Mapping):
        return schema
    found = {key: each if key in _NO_SCHEMAS else patient(each) for key, each in schema.items()}
    match found.get("type"):
        case "list" | "tuple":
            return _patient_list(found)
        case "set":
            return _made(found, _patient_list(_bare(found)), set_of, (set, _LISTS))
        case "frozenset":
            return _made(found, _patient_list(_bare(found)), _frozenset_of, (frozenset, _LISTS))
        case "dict":
            pair = core_schema.tuple_schema([found.get(key) or core_schema.any_schema() for key in _PAIR])
            return _made(found, _patient_list(core_schema.list_schema(pair)), dict_of, (dict, dict))
        case "json":
            return _before(_few_parts, found)
    return found


_PAIR = ("keys_schema", "values_schema")


def _bare(found: CoreSchema) -> Any:
    return core_schema.list_schema(found.get("items_schema"))


def _patient_list(found: Any) -> Any:
    items = found.get("items_schema") or core_schema.any_schema()
    turns = [_before(_take_turns, each) for each in items] if isinstance(items, list) else _before(_take_turns, items)
    return {**found, "fail_fast": True, "items_schema": turns}


def _made(found: CoreSchema, parts: Any, make: Callable[[Any], Any], kinds: tuple[Any, Any]) -> Any:
    """Return the schema of a set or a dict: its parts are checked as a list, and then built by `make`.

    `kinds` are the types of values that it accepts, in strict mode and in lax mode.
    """
    least, most = found.get("min_length") or 0, found.get("max_length")

    def bounded(items: Any) -> Any:
        value = make(items)
        if len(value) < least or (most is not None and len(value) > most):
            raise ValueError(f"it has {len(value):,} parts; allowed are {least:,} to {'any' if most is None else most}")
        return value

    after = core_schema.no_info_after_validator_function(bounded, parts)
    strict, lax = (_before(_as_list(kind), after) for kind in kinds)
    return core_schema.lax_or_strict_schema(lax, strict, strict=found.get("strict"), ref=found.get("ref"))


def _as_list(kind: Any) -> Callable[[Any], list[Any]]:
    def as_list(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise ValueError(f"it is of type {type(value).__name__}")
        return list(value.items() if isinstance(value, dict) else value)

    return as_list


def _frozenset_of(items: list[Any]) -> frozenset[Any]:
    return frozenset(set_of(items))


def _before(function: Callable[[Any], Any], schema: Any) -> Any:
    return core_schema.no_info_before_validator_function(function, schema)


def _take_turns(value: Any) -> Any:
    look_up()
    return value


def _few_parts(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        if has_more_parts(data, MAX_PARTS):
            raise ValueError(f"more than {MAX_PARTS:,} parts")
    return value
