"""Make host functions of typed Python functions, payload handlers, and registered tools."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name, stub_of
from agent_tools.extras import extra
from agent_tools.guest.wire.budget import MAX_PARTS, dict_of, set_of
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy
from agent_tools.runtime.host_calls.reading import aside, look_up
from agent_tools.text import has_more_parts

# Check an argument by its annotation: by pydantic alone for small values, interruptibly for large ones.
#
# pydantic checks a value without releasing the interpreter's lock, so no other thread runs meanwhile. It also collects
# every error, and builds sets of integers that may all have one hash. For large values its schema is therefore
# rewritten: before each part a function of this module runs, which lets other threads run and stops when the call has
# ended; the first error ends a list, a set or a dict; guest/wire/budget.py builds sets and dicts from the checked
# parts.

with extra("code-mode"):
    import pydantic
    import pydantic_core
    import typing_extensions
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


class TypedFunction:
    """A Python function, `def` or `async def`: arguments and result are checked by its annotations."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, policy: Policy | None = None) -> None:
        self.name: str = name or str(getattr(function, "__name__", ""))
        check_name(self.name)
        self.policy = policy or Policy()
        self.stub: Stub = stub_of(function, self.name)
        self._function = function
        self._signature = inspect.signature(function)
        self._positional = _positional(self._signature)
        hints = typing_extensions.get_type_hints(function, include_extras=True)
        adapters = {name: _adapter(hint, f"{self.name}: {name}") for name, hint in hints.items()}
        self._result = adapters.pop("return", None)
        self._checks = {name: ArgumentCheck(adapter) for name, adapter in adapters.items()}
        self._is_async = inspect.iscoroutinefunction(function)

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Check the arguments, call the function, check its result."""
        checked_args, checked_kwargs = await aside(self._bound, args, kwargs)
        value = await _done(self._function, self._is_async, checked_args, checked_kwargs)
        return self._checked_result(value)

    def _bound(self, args: tuple[Any, ...], kwargs: Keywords) -> tuple[tuple[Any, ...], Keywords]:
        names = self._positional
        if (
            names is not None and not kwargs and len(args) == len(names)
        ):  # as most calls are; binding takes as long as the rest
            return tuple(map(self._checked, names, args)), {}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise ArgumentError(f"{self.name}: {exc}") from exc
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._checked(name, value)
        return bound.args, bound.kwargs

    def _checked(self, name: str, value: Any) -> Any:
        check = self._checks.get(name)
        try:
            return check.of(value) if check else value
        except pydantic.ValidationError as exc:
            raise ArgumentError(f"{self.name}: {name}: {_first_error(exc)}") from exc

    def _checked_result(self, value: Any) -> Any:
        if self._result is None:
            return value
        try:
            known = self._result.validate_python(value)
            return self._result.dump_python(known, mode="python", by_alias=True, warnings=False)
        except pydantic.ValidationError as exc:
            raise TypeError(f"the result of {self.name} is not of its type: {_first_error(exc)}") from exc


def _positional(signature: inspect.Signature) -> tuple[str, ...] | None:
    """Return the names of the parameters; None if some cannot be passed by position."""
    parameters = signature.parameters.values()
    may_all = all(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
    return tuple(each.name for each in parameters) if may_all else None


class PayloadHandler:
    """A function of one payload, as in Isola: `hostcall(name, payload)`. It has no stub."""

    stub = None

    def __init__(self, name: str, handler: Callable[[Any], Any], policy: Policy | None = None) -> None:
        self.name = name
        self.policy = policy or Policy()
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Call the handler with the payload."""
        if len(args) != 1 or kwargs:
            raise ArgumentError(f"{self.name} takes exactly one payload.")
        return await _done(self._handler, self._is_async, args, {})


class Tool(Protocol):
    """A tool that a model can call, such as `agent_tools.tools.BaseTool`."""

    @property
    def function(self) -> Mapping[str, Any]:
        """Return the definition: `name`, `description`, `parameters`."""
        ...

    def call(self, params: str) -> Any:
        """Run the tool with the arguments in JSON."""
        ...


class ToolFunction:
    """A registered tool: its JSON schema is the signature, and the answer is text."""

    def __init__(self, tool: Tool, policy: Policy | None = None) -> None:
        function = tool.function
        self.name = function["name"]
        check_name(self.name)
        self.policy = policy or Policy()
        self.stub: Stub = stub_of_schema(self.name, function["description"], function["parameters"])
        self._tool = tool

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Call the tool in a thread."""
        arguments = {name: value for name, value in kwargs.items() if value is not None}
        try:
            text = await aside(json.dumps, arguments)
        except TypeError as exc:
            raise ArgumentError(f"{self.name}: {exc}") from exc
        return await asyncio.to_thread(_returned, self._tool.call, text)


async def _done(function: Callable[..., Any], is_async: bool, args: tuple[Any, ...], kwargs: Keywords) -> Any:
    """Return the function's result; a function that is not async runs in a thread."""
    if is_async:
        return await function(*args, **kwargs)
    value = await asyncio.to_thread(_returned, function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _returned(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a function's result. StopIteration is wrapped: threads and coroutines cannot raise it."""
    try:
        return function(*args, **kwargs)
    except StopIteration as exc:
        raise RuntimeError("function raised StopIteration") from exc


def _adapter(hint: Any, where: str) -> pydantic.TypeAdapter[Any]:
    try:
        try:
            return pydantic.TypeAdapter(hint)
        except pydantic.errors.PydanticSchemaGenerationError:  # a class of a data library
            return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    except pydantic.errors.PydanticUserError as exc:
        raise NotCrossing(f"{where}: {exc.message}") from exc


def _first_error(exc: pydantic.ValidationError) -> str:
    first = exc.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
