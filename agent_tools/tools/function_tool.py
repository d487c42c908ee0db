"""A typed Python function as a tool: its schema comes from the signature and the docstring.

pydantic makes schemas and checks arguments, so every type that pydantic knows may be used:
Literal, Optional, list, dict, TypedDict, dataclasses, enums, models, `Annotated[int, Field(ge=1)]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agent_tools.errors import InvalidParams
from agent_tools.extras import pip_install
from agent_tools.json_reader import load_json
from agent_tools.messages import ContentItem
from agent_tools.tools.base import BaseTool, Params


class FunctionTool(BaseTool):
    """A tool that calls a function with the arguments the model wrote, checked and converted to the declared types.

        def convert(amount: float, unit: Literal["km", "mi"] = "km") -> float:
            '''Convert a distance to metres.'''

        Assistant(function_list=[convert], llm=...)

    A description in `Annotated[float, "how much"]` wins over the docstring's. An `async def` is run in an event loop of
    its own. The model gets what the function returns: text as it is, all else as JSON.

    Args:
        function: every argument must be passable by keyword; one without a type may be anything.
        name: the tool's name; the function's by default.
        description: the tool's description for the model; the docstring's summary by default.

    Raises:
        TypeError: the signature cannot be made a schema.
    """

    def __init__(self, function: Callable[..., Any], name: str = "", description: str = "") -> None:
        try:
            from agent_tools.tools import arguments, docstrings  # they need pydantic
        except ImportError as exc:
            raise ImportError(f"Functions as tools need more: {pip_install('agents')}") from exc
        doc = docstrings.read_docstring(inspect.getdoc(function) if inspect.isroutine(function) else "")
        self.name = name or getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise TypeError(f"{function!r} has no name of its own: pass FunctionTool(function, name='...').")
        self.description = description or doc.summary or self.name.replace("_", " ")
        self._plain_json = arguments.plain_json
        self._arguments = arguments.Arguments(self.name, function, doc.arguments)
        self.parameters = self._arguments.schema()
        super().__init__()

    def call(self, params: Params, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            InvalidParams: the arguments do not fit; the message says where.
            Exception: whatever the function raises.
        """
        try:
            given = load_json(params or "{}") if isinstance(params, str) else params
        except (ValueError, RecursionError) as exc:
            raise InvalidParams("the arguments are not JSON: give an object with the function's arguments.") from exc
        return self._told(self._arguments.call(given))

    def _told(self, value: Any) -> Any:
        """Return a function's result in a form for agents: text, content items, or plain JSON values."""
        is_items = isinstance(value, (list, tuple)) and value and all(isinstance(item, ContentItem) for item in value)
        return value if isinstance(value, str) or is_items else self._plain_json(value)
