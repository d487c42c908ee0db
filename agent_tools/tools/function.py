"""A typed Python function as a tool: its schema comes from the signature and the docstring.

Schemas and the checking of arguments are pydantic's, so whatever pydantic knows as a type may be an argument's:
Literal, Optional, list, dict, TypedDict, dataclasses, enums, models, `Annotated[int, Field(ge=1)]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from agent_tools.errors import InvalidParams
from agent_tools.messages import ContentItem
from agent_tools.tools.base import BaseTool
from agent_tools.tools.docstring import read_docstring
from agent_tools.tools.params import load_json
from agent_tools.tools.typed_dicts import portable, typed_dict

MAX_FAULTS = 5
"""Of what is wrong with arguments, so much is told to the model."""


class FunctionTool(BaseTool):
    """A tool that calls a function with the arguments the model wrote, checked and converted to the declared types.

        def convert(amount: float, unit: Literal["km", "mi"] = "km") -> float:
            '''Convert a distance to metres.'''

        Assistant(function_list=[convert], llm=...)

    A description in `Annotated[float, "how much"]` wins over the docstring's. An `async def` is run in an event loop of
    its own. What the function returns is told to the model: text as it is, all else as JSON.

    Args:
        function: every argument must be passable by keyword; one without a type may be anything.
        name: the tool's name; the function's by default.
        description: what the model is told of it; the docstring's summary by default.

    Raises:
        TypeError: the signature cannot be made a schema.
    """

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        doc = read_docstring(inspect.getdoc(function) if inspect.isroutine(function) else "")
        self._call_it = function
        self.name = name or getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise TypeError(f"{function!r} has no name of its own: pass FunctionTool(function, name='...').")
        self.description = description or doc.summary or self.name.replace("_", " ")
        self._arguments = _adapter(self.name, function, doc.arguments)
        self.parameters = _schema(self._arguments)
        super().__init__()

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            InvalidParams: the arguments do not fit; the message says where.
            Exception: whatever the function raises.
        """
        arguments = self._checked(params)
        if inspect.iscoroutinefunction(self._call_it):
            return _told(_run_async(self._call_it, arguments))
        return _told(self._call_it(**arguments))

    def _checked(self, params: str | dict[str, Any]) -> dict[str, Any]:
        from pydantic import ValidationError

        try:
            given = load_json(params or "{}") if isinstance(params, str) else params
        except (ValueError, RecursionError) as exc:
            raise InvalidParams("the arguments are not JSON: give an object with the function's arguments.") from exc
        try:
            return dict(self._arguments.validate_python(given))
        except ValidationError as exc:
            faults = [
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                for fault in exc.errors(include_url=False, include_input=False, include_context=False)
            ]
            more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
            raise InvalidParams(f"the arguments do not fit: {'; '.join(faults[:MAX_FAULTS])}{more}") from exc


def _adapter(name: str, function: Callable[..., Any], descriptions: Mapping[str, str]) -> Any:
    """A validator of all arguments together."""
    pydantic = _pydantic()
    fields, optional = {}, set()
    for parameter, hint in _signature(name, function):
        options: dict[str, Any] = {}
        if parameter.default is not parameter.empty:
            optional.add(parameter.name)
            options = _shown_default(parameter.default)
        documented = descriptions.get(parameter.name)
        hint = _with_text(portable(hint), documented)
        if options:
            hint = Annotated[hint, pydantic.Field(json_schema_extra=options)]
        fields[parameter.name] = hint
    try:
        return pydantic.TypeAdapter(typed_dict(name, fields, optional, closed=True))
    except pydantic.errors.PydanticUserError as exc:
        raise TypeError(f"{name} cannot be a tool: {exc.message}") from exc


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
    from pydantic import Field

    texts = [each for each in get_args(hint)[1:] if isinstance(each, str)] if get_origin(hint) is Annotated else []
    text = texts[0] if texts else documented
    return Annotated[hint, Field(description=text)] if text else hint


def _shown_default(value: Any) -> dict[str, Any]:
    """The default as the schema shows it; nothing for one that is no JSON."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return {"default": to_jsonable_python(value)}
    except PydanticSerializationError:
        return {}


def _schema(adapter: Any) -> dict[str, Any]:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Without the titles, which only repeat the names."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    schema: dict[str, Any] = adapter.json_schema(schema_generator=Untitled)
    schema.pop("title", None)
    return {"type": "object", "properties": {}, "required": [], **schema}


def _told(value: Any) -> Any:
    """What a function returned, as an agent takes it: text, content items, or plain JSON values."""
    from pydantic_core import to_jsonable_python

    is_items = isinstance(value, (list, tuple)) and value and all(isinstance(item, ContentItem) for item in value)
    return value if isinstance(value, str) or is_items else to_jsonable_python(value, fallback=str)


def _run_async(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """In a loop of its own in a thread of its own, since this thread may be inside a loop."""
    from functools import partial

    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        return portal.call(partial(function, **arguments))


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError as exc:
        raise ImportError("Functions as tools need pydantic: pip install 'agent-tools-sandbox[agents]'") from exc
    return pydantic
