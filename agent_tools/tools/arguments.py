"""The arguments of a Python function: their JSON schema for a model, and the check of a model's arguments."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from anyio.from_thread import start_blocking_portal
from docstring_parser import ParseError, common, google, numpydoc, rest
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict, get_type_hints

from agent_tools.errors import InvalidParams

# TypedDicts as pydantic takes them: before Python 3.12, only those of typing_extensions.


def typed_dict(name: str, hints: Mapping[str, Any], optional: Collection[str] = (), *, closed: bool = False) -> Any:
    """Make a TypedDict of hints; a `closed` one refuses other keys."""
    fields = {key: NotRequired[hint] if key in optional else hint for key, hint in hints.items()}
    make: Any = TypedDict
    made = make(name, fields)
    if closed:
        made.__pydantic_config__ = {"extra": "forbid"}
    return made


def portable(hint: Any) -> Any:
    """Return the hint with every TypedDict of `typing` in it replaced by one of typing_extensions."""
    if typing.is_typeddict(hint):
        return _rebuilt(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (None, Literal) or not arguments:
        return hint
    if origin is Annotated:
        annotated: Any = Annotated
        whole = (portable(arguments[0]), *arguments[1:])
        return annotated[whole]
    changed = tuple(portable(each) for each in arguments)
    if changed == arguments:
        return hint
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, changed) if origin is types.UnionType else Union[changed]
    return origin[changed]


def _rebuilt(hint: Any) -> Any:
    marks: tuple[Any, ...] = (Required, NotRequired)
    hints = {}
    for key, each in get_type_hints(hint, include_extras=True).items():
        while get_origin(each) in marks:
            (each,) = get_args(each)
        hints[key] = portable(each)
    made = typed_dict(hint.__name__, hints, hint.__optional_keys__)
    made.__doc__ = hint.__doc__
    return made


# A docstring's summary and its descriptions of arguments, in Google's, NumPy's or Sphinx's style.


_MORE_ARGUMENTS = ("Keyword Args", "Keyword Arguments", "参数")
_MORE_SECTIONS = ("Note", "Notes", "References", "See Also", "Todo", "Warning", "Warnings", "返回", "示例")
_WIDE_COLON = re.compile("^(参数|返回|示例)：$", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring that describe a tool. `arguments` maps a name to its description on one line."""

    summary: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docstring:
    """Read a docstring in the style that matches most sections; the text before the first one is the summary."""
    text = _WIDE_COLON.sub(r"\1:", inspect.cleandoc(text or ""))
    found = max(_readings(text), key=lambda reading: len(reading.meta))
    arguments = {each.arg_name.lstrip("*"): " ".join((each.description or "").split()) for each in found.params}
    return Docstring((found.description or "").strip(), arguments)


def _readings(text: str) -> Iterator[common.Docstring]:
    sections = [
        *google.DEFAULT_SECTIONS,
        *(google.Section(name, "param", google.SectionType.MULTIPLE) for name in _MORE_ARGUMENTS),
        *(google.Section(name, name, google.SectionType.SINGULAR) for name in _MORE_SECTIONS),
    ]
    for parse in (google.GoogleParser(sections).parse, numpydoc.parse, rest.parse):
        with suppress(ParseError):  # not this style
            yield parse(text)


MAX_FAULTS = 5  # faults in a call's arguments that are reported to the model


class Arguments:
    """The arguments of one function, all passed by name.

    Args:
        name: the function's, for messages.
        function: the function.
        descriptions: an argument's description, by its name; one in `Annotated` wins.

    Raises:
        TypeError: the signature cannot be made a schema.
    """

    def __init__(self, name: str, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        self._function = function
        fields, optional = {}, set()
        for parameter, hint in _signature(name, function):
            hint = _with_text(portable(hint), descriptions.get(parameter.name))
            if parameter.default is not parameter.empty:
                optional.add(parameter.name)
                if shown := _shown_default(parameter.default):
                    hint = Annotated[hint, Field(json_schema_extra=shown)]
            fields[parameter.name] = hint
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(typed_dict(name, fields, optional, closed=True))
        except PydanticUserError as exc:
            raise TypeError(f"{name} cannot be a tool: {exc.message}") from exc

    def call(self, given: object) -> Any:
        """Call the function with checked arguments; a coroutine function runs in its own event loop and thread.

        Raises:
            InvalidParams: they do not fit; the message says where.
            Exception: whatever the function raises.
        """
        arguments = self.check(given)
        if not inspect.iscoroutinefunction(self._function):
            return self._function(**arguments)
        with start_blocking_portal() as portal:  # this thread may be inside a loop
            return portal.call(partial(self._function, **arguments))

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the object that holds all arguments."""
        schema = self._adapter.json_schema(schema_generator=_Untitled)
        schema.pop("title", None)
        return {"type": "object", "properties": {}, "required": [], **schema}

    def check(self, given: object) -> dict[str, Any]:
        """Return the arguments converted to the function's types.

        Raises:
            InvalidParams: they do not fit; the message says where.
        """
        try:
            return dict(self._adapter.validate_python(given))
        except ValidationError as exc:
            faults = [
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                for fault in exc.errors(include_url=False, include_input=False, include_context=False)
            ]
            more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
            raise InvalidParams(f"the arguments do not fit: {'; '.join(faults[:MAX_FAULTS])}{more}") from exc


class _Untitled(GenerateJsonSchema):
    """A schema without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _signature(name: str, function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    try:
        parameters = inspect.signature(function).parameters.values()
        hinted = function if inspect.isroutine(function) else type(function).__call__
        hints = get_type_hints(hinted, include_extras=True)
    except (NameError, TypeError, ValueError) as exc:
        raise TypeError(f"{name} cannot be a tool: {exc}") from exc
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name} cannot be a tool: {parameter} cannot be passed by its name.")
    return [(parameter, hints.get(parameter.name, Any)) for parameter in parameters]


def _with_text(hint: Any, documented: str | None) -> Any:
    """The hint with its description, from `Annotated[..., 'text']` or the docstring."""
    texts = [each for each in get_args(hint)[1:] if isinstance(each, str)] if get_origin(hint) is Annotated else []
    text = texts[0] if texts else documented
    return Annotated[hint, Field(description=text)] if text else hint


def _shown_default(value: Any) -> dict[str, Any]:
    """The default for the schema; empty for one that is not JSON."""
    try:
        return {"default": to_jsonable_python(value)}
    except PydanticSerializationError:
        return {}


def plain_json(value: Any) -> Any:
    """Return a value in JSON types; other types become text."""
    return to_jsonable_python(value, fallback=str)
