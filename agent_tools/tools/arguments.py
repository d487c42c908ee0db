"""The arguments of a Python function: their JSON schema for a model, and the check of a model's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

from anyio.from_thread import start_blocking_portal
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import get_type_hints

from agent_tools.errors import InvalidParams
from agent_tools.tools.typed_dicts import portable, typed_dict

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
        """Call the function with checked arguments; what it awaits runs in its own event loop and thread.

        Raises:
            InvalidParams: they do not fit; the message says where.
            Exception: whatever the function raises.
        """
        arguments = self.check(given)
        found = self._function(**arguments)
        if not inspect.isawaitable(found):
            return found
        with start_blocking_portal() as portal:  # this thread may be inside a loop
            return portal.call(_result_of, found)

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


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


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
