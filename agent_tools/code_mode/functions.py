"""Make host functions of typed Python functions, payload handlers, and registered tools."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from agent_tools.code_mode.hints import NotCrossing
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import Stub, check_name, python_name, stub_of
from agent_tools.extras import extra
from agent_tools.runtime.host_calls.aside import aside
from agent_tools.runtime.host_calls.function import ArgumentError, Keywords, Policy, only_keywords

with extra("code-mode"):
    import pydantic
    import typing_extensions
from agent_tools.code_mode.argument_check import ArgumentCheck


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


class SchemaFunction:
    """A framework's tool, which checks its arguments itself: its JSON schema is the signature.

    Args:
        call: gets the arguments by name, without those that are None.
        returns: the JSON schema of what it returns; None for a text.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        schema: Mapping[str, Any],
        call: Callable[[Keywords], Awaitable[Any]],
        returns: Mapping[str, Any] | None = MappingProxyType({}),
        policy: Policy | None = None,
    ) -> None:
        self.name = python_name(name)
        check_name(self.name)
        self.policy = policy or Policy()
        self.stub: Stub = stub_of_schema(self.name, doc, schema, returns)
        self._call = call

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Call the tool."""
        return await self._call(only_keywords(self.name, args, kwargs))


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
