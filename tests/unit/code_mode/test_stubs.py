"""Stubs: every type as the guest reads it, what is refused, and that the source is Python."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

import numpy as np
import pandas as pd
import pydantic
import pytest
import typing_extensions

from agent_tools.code_mode import Toolset
from agent_tools.code_mode.functions import SchemaFunction
from agent_tools.code_mode.schema import stub_of_schema
from agent_tools.code_mode.stubs import NotCrossing, Stub, module_source, stub_of
from tests.code_mode import sandbox


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    note: Annotated[str, "what is\nthere"] = ""


class Tree(typing_extensions.TypedDict):
    """A tree."""

    leaves: list[Tree]
    name: typing_extensions.NotRequired[str]


class Order(pydantic.BaseModel):
    amount: decimal.Decimal = pydantic.Field(description="in euro\nand cent")
    to: Point


class Limit(pydantic.BaseModel):
    most: float = pydantic.Field(100.0, alias="maxPrice")
    from_: str = pydantic.Field("", alias="from")


def returning(hint: Any) -> Stub:
    def function() -> None: ...

    function.__annotations__["return"] = hint
    return stub_of(function, "function")


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        *((each, each.__name__) for each in (str, int, float, bool, bytes, complex, list, dict, tuple, set)),
        *((None, "None"), (Any, "Any"), (object, "object")),
        *((dt.datetime, "datetime.datetime"), (dt.date, "datetime.date"), (dt.timedelta, "datetime.timedelta")),
        *((decimal.Decimal, "decimal.Decimal"), (uuid.UUID, "uuid.UUID")),
        *(
            (list[int], "list[int]"),
            (dict[str, list[int]], "dict[str, list[int]]"),
            (tuple[int, ...], "tuple[int, ...]"),
        ),
        *((Sequence[int], "list[int]"), (Iterable[str], "list[str]"), (Mapping[str, int], "dict[str, int]")),
        *((Union[int, str], "int | str"), (int | None, "int | None")),
        *((Literal["a", 1], "Literal['a', 1]"), (Colour, "Literal['red', 'blue']"), (Annotated[int, "n"], "int")),
        *((Point, "Point"), (list[Tree], "list[Tree]"), (Order, "Order")),
        *((pd.DataFrame, "pandas.DataFrame"), (np.ndarray, "numpy.ndarray")),
    ],
    ids=str,
)
def test_a_type_as_the_guest_reads_it(hint: Any, text: str) -> None:
    assert returning(hint).returns == text


@pytest.mark.parametrize("hint", [Callable[[int], int], type, typing.TypeVar("T"), Exception], ids=str)
def test_a_type_that_cannot_cross_is_refused_with_its_place(hint: Any) -> None:
    with pytest.raises(NotCrossing, match="function: the result is of type"):
        returning(hint)


def test_the_keys_of_a_model_are_those_that_it_takes_and_gives() -> None:
    lines = ("'maxPrice': 'NotRequired[float]'", "'from': 'NotRequired[str]'")
    (source,) = returning(Limit).types.values()
    assert source == "Limit = TypedDict('Limit', {" + "".join(f"\n    {line}," for line in lines) + "\n})"

    def limit(given: Limit) -> Limit:
        return Limit(maxPrice=given.most + 1)

    limit.__annotations__.update({"given": Limit, "return": Limit})
    with sandbox([limit]) as script:
        script.load_script("async def main(): return await limit(await limit({'maxPrice': 5.0}))")
        assert script.run("main") == {"maxPrice": 7.0, "from": ""}


def test_models_become_typed_dicts_with_their_notes() -> None:
    assert returning(Order).types == {
        "Point": "class Point(TypedDict):\n    x: int\n    note: NotRequired[str]  # what is there",
        "Order": "class Order(TypedDict):\n    amount: decimal.Decimal  # in euro and cent\n    to: Point",
    }
    assert returning(Tree).types["Tree"].endswith("    leaves: list[Tree]\n    name: NotRequired[str]")


def test_a_signature_keeps_its_kinds_and_defaults_and_notes_go_into_the_docstring() -> None:
    def pay(to: str, /, amount: Annotated[int, "in cent"], *, colour: Colour = Colour.RED, on: bool = True) -> None:
        """Pay."""

    stub = stub_of(pay, "pay")
    assert stub.signature(is_async=True) == (
        "async def pay(to: str, /, amount: int, *, colour: Literal['red', 'blue'] = 'red', on: bool = True) -> None:"
    )
    assert stub.doc == "Pay.\n\nArgs:\n    amount: in cent"
    assert 'return _call_sync("pay", (to, ), {"amount": amount, "colour": colour, "on": on})' in stub.source(
        is_async=False
    )


def test_a_default_that_is_no_literal_stays_on_the_host() -> None:
    def since(day: dt.date = dt.date(2024, 1, 1), n: float = float("nan")) -> None: ...

    stub = stub_of(since, "since")
    assert stub.parameters == ["day: datetime.date = ...", "n: float = ..."]
    assert "if value is not ..." in stub.source(is_async=True)

    def by_place(day: dt.date = dt.date(2024, 1, 1), /) -> None: ...

    with pytest.raises(NotCrossing, match="by_place: day: its default cannot cross"):
        stub_of(by_place, "by_place")


@pytest.mark.parametrize("doc", ['a """ b', "back\\slash\\", "two\nlines", 'ends in "', ""])
def test_any_docstring_makes_python(doc: str) -> None:
    def function() -> None: ...

    function.__doc__ = doc
    source = module_source([stub_of(function, "function")], is_async=True)
    namespace: dict[str, Any] = {}
    exec(compile(source, "tools", "exec"), namespace)
    assert (inspect.getdoc(namespace["function"]) or "").strip() == doc.strip()


def test_variadic_parameters_are_refused() -> None:
    def many(*args: int) -> None: ...

    with pytest.raises(NotCrossing, match="name every parameter"):
        stub_of(many, "many")


@pytest.mark.parametrize("name", ["_private", "class", "not-a-name", "2x", ""])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(NotCrossing):
        Toolset().add(lambda: None, name=name or "<lambda>")


def test_two_functions_of_one_name_and_two_types_of_one_name_are_refused() -> None:
    def first() -> Point: ...  # type: ignore[empty-body]

    def second() -> None: ...

    second.__annotations__["return"] = dataclasses.make_dataclass("Point", [("y", int)])
    with pytest.raises(NotCrossing, match="Two host functions have the name 'first'"):
        Toolset([first, first])
    with pytest.raises(NotCrossing, match="the name Point means two different things"):
        Toolset([first, second])


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a function"):
        Toolset([3])


def test_the_description_tells_how_and_what() -> None:
    def now() -> dt.datetime:
        """The time."""
        return dt.datetime(2024, 1, 1)

    text = Toolset([now]).description("main")
    assert "`async def main() -> object:`" in text
    assert 'async def now() -> datetime.datetime:\n    """The time."""\n    ...' in text
    assert "nothing is awaited" in Toolset([now], style="sync").description()


def test_handlers_are_described_by_how_they_are_called() -> None:
    described = Toolset({"look_up": lambda payload: payload}).description()
    assert "```" not in described
    assert "('look_up'): from sandbox.asyncio import hostcall; await hostcall(name, payload)" in described


def test_a_description_hides_nothing_from_whoever_reads_it() -> None:
    def pay() -> None:
        raise NotImplementedError

    pay.__doc__ = "Pays." + "".join(chr(0xE0000 + ord(char)) for char in "always") + "\u200b"
    text = Toolset([pay]).description()
    assert "Pays.\\U000e0061" in text
    assert "\\u200b" in text
    assert not any(ord(char) >= 0xE0000 or char == "\u200b" for char in text)


# -- of JSON schema ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({}, "Any"),
        (True, "Any"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"enum": ["a", 1, None]}, "Literal['a', 1, None]"),
        ({"enum": [1.5]}, "Any"),
        ({"const": "x"}, "Literal['x']"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "properties": {"from": {}}}, "dict[str, Any]"),
        ({"type": "object", "properties": {"a": {}}}, "FindQ"),
        ({"$ref": "#/$defs/Item"}, "FindItem"),
        ({"$ref": "#/$defs/Absent"}, "Any"),
    ],
    ids=str,
)
def test_a_schema_as_the_guest_reads_it(schema: Any, text: str) -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer"}}}
    stub = stub_of_schema("find", "", {"properties": {"q": schema}, "required": ["q"], "$defs": {"Item": item}})
    assert stub.parameters == ["*", f"q: {text}"]
    compile(module_source([stub], is_async=True), "tools", "exec")


def test_required_parameters_come_first_and_the_others_may_be_left_out() -> None:
    schema = {
        "properties": {"a": {"type": "string", "description": "an\na"}, "b": {"type": "integer"}},
        "required": ["b"],
    }
    stub = stub_of_schema("find", "Finds.", schema, {"type": "object", "properties": {"n": {"type": "integer"}}})
    assert stub.signature(is_async=False) == "def find(*, b: int, a: str | None = None) -> FindResult:"
    assert stub.doc == "Finds.\n\nArgs:\n    a: an a"
    assert stub.types == {"FindResult": "class FindResult(TypedDict):\n    n: NotRequired[int]"}


def test_parameters_as_a_list_are_taken_too() -> None:
    stub = stub_of_schema(
        "find", "", [{"name": "q", "type": "string", "required": True}, {"name": "n", "type": "integer"}]
    )
    assert stub.parameters == ["*", "q: str", "n: int | None = None"]


def test_a_schema_that_mentions_itself_in_many_ways_is_written_once() -> None:
    mentions = {name: {"$ref": "#/$defs/Node"} for name in "abcdefghij"}
    definitions = {"Node": {"type": "object", "properties": mentions}}
    stub = stub_of_schema("walk", "", {"properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": definitions})
    assert list(stub.types) == ["WalkNode"]
    assert stub.types["WalkNode"].count("NotRequired[WalkNode]") == 10


def test_parameters_that_have_no_name_in_python_get_one_and_cross_by_their_own() -> None:
    evil = "x: int = __import__('os').abort()"
    names = ["from", "user-id", "user_id", "user.id", "", "2d", "_call", evil]
    stub = stub_of_schema("find", "", {"properties": {name: {"type": "string"} for name in names}})
    written = ["from_", "user_id", "user_id_", "user_id__", "_", "_2d", "_call_", "x__int_____import____os___abort__"]
    assert list(stub.names) == written
    calls: list[Any] = []
    namespace: dict[str, Any] = {"_call_sync": lambda *call: calls.append(call)}
    exec(compile(module_source([stub], is_async=False), "tools", "exec"), namespace)
    namespace["find"](**{name: str(index) for index, name in enumerate(written)})
    assert calls == [("find", (), {name: str(index) for index, name in enumerate(names)})]


def test_nothing_in_a_schema_can_become_code() -> None:
    evil = 'x"""\n    import os\nos.abort()\n#'
    schema = {
        "properties": {"q": {"description": evil, "enum": [evil]}, "r": {"$ref": f"#/$defs/{evil}"}, "s": {
            "type": "object", "properties": {"n": {"description": evil}}}},
        "$defs": {evil: {"type": "object", "properties": {"n": {}}}},
    }  # fmt: skip
    stub = stub_of_schema("find", evil, schema)
    namespace: dict[str, Any] = {}
    exec(compile(module_source([stub], is_async=True), "tools", "exec"), namespace)
    assert namespace["__all__"] == ["FindS", "find"]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"enum": []}, id="none of nothing"),
        pytest.param({"type": []}, id="of no type"),
        pytest.param({"enum": 5}, id="values that are no list"),
        pytest.param({"anyOf": {"type": "string"}, "type": "string"}, id="choices that are no list"),
        pytest.param({"type": "object", "properties": {"a": {}}, "required": 5}, id="required that is no list"),
        pytest.param({"type": "string", "description": "a\0b\ud800\x1b[1mc"}, id="a description that is no text"),
    ],
)
def test_one_malformed_schema_spoils_no_other_function(schema: Any) -> None:
    async def call(given: dict[str, Any]) -> None: ...

    odd = SchemaFunction("find", "Finds\0 \ud800.", {"properties": {"q": schema}}, call)
    source = module_source([odd.stub, returning(int)], is_async=True)
    assert "q: " in source
    compile(source.encode(), "tools", "exec")


def test_a_schema_without_a_meaning_makes_a_function_without_types() -> None:
    assert stub_of_schema("find", "", {"properties": {"q": {"enum": []}}}).parameters == ["*", "q: Any | None = None"]
    malformed: list[Any] = [None, 5, {"properties": 5}, [{}]]
    for schema in malformed:
        assert stub_of_schema("find", "", schema).signature(is_async=False) == "def find() -> Any:"
