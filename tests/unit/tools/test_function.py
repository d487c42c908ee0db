"""Functions as tools: what the model is told of them, what reaches them, what comes back."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
from pydantic import Field

from agent_tools.errors import InvalidParams
from agent_tools.messages import ContentItem
from agent_tools.tools import FunctionTool
from agent_tools.tools.docstrings import read_docstring


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    y: int


class Shape(TypedDict, total=False):
    points: list[Point]
    label: str


@dataclass
class Box:
    width: float
    height: float = 1.0


def schema(function: Any, argument: str = "value") -> Any:
    parameters = FunctionTool(function).function["parameters"]
    found = parameters["properties"][argument]
    return parameters["$defs"][found["$ref"].rpartition("/")[2]] if "$ref" in found else found


def taking(kind: Any) -> Any:
    def take(value: Any) -> str:
        return repr(value)

    take.__annotations__ = {"value": kind, "return": str}
    return take


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (int, {"type": "integer"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Annotated[int, Field(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Any, {}),
    ],
)
def test_types_become_schemas(kind: Any, expected: dict[str, Any]) -> None:
    assert schema(taking(kind)) == expected


def test_enums_dataclasses_and_typed_dicts_become_schemas() -> None:
    assert schema(taking(Colour))["enum"] == ["red", "blue"]
    assert schema(taking(Box))["required"] == ["width"]
    assert schema(taking(Shape))["properties"]["points"]["type"] == "array"
    assert "required" not in schema(taking(Shape))
    assert schema(taking(Point))["required"] == ["x", "y"]


@pytest.mark.parametrize(
    ("kind", "given", "received"),
    [
        (int, "3", 3),
        (Colour, "blue", Colour.BLUE),
        (Box, {"width": 2}, Box(2.0)),
        (Shape, {"points": [{"x": 1, "y": 2}]}, {"points": [{"x": 1, "y": 2}]}),
        (Optional[Point], None, None),  # noqa: UP045
        (list[Box], [{"width": 1, "height": 2}], [Box(1.0, 2.0)]),
    ],
)
def test_arguments_arrive_as_declared(kind: Any, given: Any, received: Any) -> None:
    assert FunctionTool(taking(kind)).call({"value": given}) == repr(received)


def move(distance: float, unit: Literal["km", "mi"] = "km", *, times: int = 1) -> dict[str, Any]:
    """Move on.

    By land only.

    Args:
        distance: how far,
            as the crow flies.
        unit: of the distance.

    Returns:
        Where one is then.
    """
    return {"at": [distance * times, unit]}


def test_the_docstring_describes_the_tool_and_its_arguments() -> None:
    function = FunctionTool(move).function
    assert (function["name"], function["description"]) == ("move", "Move on.\n\nBy land only.")
    assert function["parameters"]["properties"] == {
        "distance": {"type": "number", "description": "how far, as the crow flies."},
        "unit": {"type": "string", "enum": ["km", "mi"], "description": "of the distance.", "default": "km"},
        "times": {"type": "integer", "default": 1},
    }
    assert function["parameters"]["required"] == ["distance"]
    assert function["parameters"]["additionalProperties"] is False


@pytest.mark.parametrize("params", ['{"distance": 2}', "```json\n{distance: 2}\n```", {"distance": 2}])
def test_a_call_takes_what_models_write(params: Any) -> None:
    assert FunctionTool(move).call(params) == {"at": [2.0, "km"]}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ("nonsense {", "the arguments are not JSON"),
        ("[1]", "arguments: Input should be a valid dictionary"),
        ("{}", "distance: Field required"),
        ('{"distance": "far", "unit": "ell"}', "distance: .*; unit: Input should be 'km' or 'mi'"),
        ('{"distance": 1, "speed": 2}', "speed: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_told(params: str, told: str) -> None:
    with pytest.raises(InvalidParams, match=told):
        FunctionTool(move).call(params)


def test_a_function_without_arguments_needs_none() -> None:
    assert FunctionTool(lambda: "done", name="go").call("") == "done"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("text", "text"),
        (Box(1.0), {"width": 1.0, "height": 1.0}),
        ([Colour.RED], ["red"]),
        ([ContentItem(text="a")], [ContentItem(text="a")]),
    ],
)
def test_what_a_function_returns_is_told(value: Any, told: Any) -> None:
    assert FunctionTool(lambda: value, name="give").call("{}") == told


def test_async_functions_are_run() -> None:
    async def later(x: int) -> int:
        return x + 1

    class Later:
        """Add."""

        async def __call__(self, x: int) -> int:
            return await later(x)

    @functools.wraps(later)
    def wrapped(x: int) -> Any:
        return later(x)

    for function in (later, Later(), wrapped, functools.partial(later)):
        assert FunctionTool(function, name="later").call('{"x": 1}') == 2


def test_methods_and_callable_objects_are_functions_too() -> None:
    class Counter:
        """Counts."""

        def add(self, n: int) -> int:
            """Add."""
            return n + 1

        def __call__(self, n: int) -> int:
            return n + 2

    assert FunctionTool(Counter().add).call({"n": 1}) == 2
    assert FunctionTool(Counter(), name="count").call({"n": "1"}) == 3


def test_signatures_that_cannot_be_told_are_refused() -> None:
    with pytest.raises(TypeError, match=r"\*args cannot be passed by its name"):
        FunctionTool(lambda *args: 1, name="many")
    with pytest.raises(TypeError, match="has no name of its own"):
        FunctionTool(lambda: 1)
    with pytest.raises(TypeError, match="cannot be a tool"):
        FunctionTool(taking(type("Strange", (), {})))


NUMPY = """Say it.

Parameters
----------
x : int
    The x.
y
    The y,
    at length.

Returns
-------
str
    Text.
"""
REST = """Say it.

:param int x: The x.
:param y: The y,
    at length.
:returns: Text.
"""
GOOGLE = """Say it.

Args:
    x (int): The x.
    y: The y,
        at length.

Raises:
    ValueError: never.
"""
CHINESE = """Say it.

参数：
    x (int): The x.
    y: The y,
        at length.

返回：
    Text.
"""


@pytest.mark.parametrize("text", [NUMPY, REST, GOOGLE, CHINESE], ids=["numpy", "rest", "google", "chinese headings"])
def test_docstrings_of_all_kinds_are_read(text: str) -> None:
    found = read_docstring(text)
    assert found.summary == "Say it."
    assert found.arguments == {"x": "The x.", "y": "The y, at length."}


def test_no_docstring_is_empty() -> None:
    assert read_docstring(None).summary == ""


def test_a_section_that_is_not_written_as_it_should_be_stays_in_the_summary() -> None:
    found = read_docstring("Say it.\n\nArgs:\n    x - the x\n")
    assert (found.summary, found.arguments) == ("Say it.\n\nArgs:\n    x - the x", {})


def test_invalid_escapes_in_arguments_keep_their_backslashes() -> None:
    def pattern(text: str) -> str:
        return text

    assert FunctionTool(pattern).call(r'{"text": "\d+\s \"a\" \u00e9 C:\users"}') == '\\d+\\s "a" é C:\\users'
    assert FunctionTool(pattern).call(r"""{"text": "it\'s"}""") == "it's"
