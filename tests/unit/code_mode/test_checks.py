"""The patient check of large arguments: the same answers as pydantic's own, at a bounded cost."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Union

import pydantic
import pytest
import typing_extensions

from agent_tools.code_mode.argument_check import LARGE_PARTS, ArgumentCheck
from agent_tools.code_mode.functions import TypedFunction
from agent_tools.guest.wire.budget import GivenUp
from agent_tools.runtime.host_calls.aside import Aside, current
from agent_tools.runtime.host_calls.function import ArgumentError

MANY = 4 * LARGE_PARTS
ONE_HASH = 2**61 - 1


class Model(pydantic.BaseModel):
    numbers: list[int] = []
    names: set[str] = set()
    ids: set[int] = set()
    more: Model | None = None


class Row(typing_extensions.TypedDict):
    a: int
    b: typing_extensions.NotRequired[str]


@dataclass
class Point:
    x: int
    tags: frozenset[int] = frozenset()


Short = Annotated[list[int], pydantic.Field(max_length=10)]
Even = Annotated[int, pydantic.AfterValidator(lambda n: n if n % 2 == 0 else 1 / 0)]
Tree = typing_extensions.TypeAliasType("Tree", "dict[str, Union[Tree, int]]")


def checked(hint: Any, value: Any, check: Any = None) -> Any:
    """Return what a check makes of a value, or how it fails."""
    try:
        return (check or pydantic.TypeAdapter(hint).validate_python)(value)
    except pydantic.ValidationError:
        return "does not fit"
    except ZeroDivisionError:
        return "raised"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[int], list(range(MANY))),
        (list[int], [str(each) for each in range(MANY)]),
        (list[int], [*range(MANY), "x"]),
        (list[Even], [0] * MANY),
        (list[Even], [1] * MANY),
        (Short, [1] * MANY),
        (tuple[int, ...], list(range(MANY))),
        (tuple[int, list[int]], [1, list(range(MANY))]),
        (set[int], list(range(MANY))),
        (set[int], {str(each) for each in range(MANY)}),
        (set[int], dict.fromkeys(range(MANY))),
        (frozenset[tuple[int, str]], [[each, "x"] for each in range(MANY)]),
        (Annotated[set[int], pydantic.Field(max_length=5)], [1] * MANY),
        (Annotated[set[int], pydantic.Field(min_length=5)], [1] * MANY),
        (Annotated[set[int], pydantic.Strict()], list(range(MANY))),
        (Union[set[int], list[int]], list(range(MANY))),
        (Union[set[int], list[int]], set(range(MANY))),
        (Union[dict[str, int], dict[str, str]], {str(each): "x" for each in range(MANY)}),
        (Union[list[int], list[str], None], [str(each) + "x" for each in range(MANY)]),
        (dict[int, str], {str(each): "x" for each in range(MANY)}),
        (dict[int, str], [[each, "x"] for each in range(MANY)]),
        (dict[str, Any], {str(each): [] for each in range(MANY)}),
        (dict, {each: each for each in range(MANY)}),
        (Tree, {"a": {str(each): 1 for each in range(MANY)}, "b": {"c": {}}}),
        (Tree, {"a": {str(each): "x" for each in range(MANY)}}),
        (list[Model], [{"numbers": [1], "names": ["x"], "ids": [1], "more": {"ids": ["2"]}}] * MANY),
        (Model, {"numbers": ["1"] * MANY}),
        (Model, {"ids": list(range(MANY)), "more": {"names": [1]}}),
        (list[Row], [{"a": 1}] * MANY),
        (list[Row], [{"a": 1}] * MANY + [{"b": 1}]),
        (list[Point], [{"x": "1", "tags": [1]}] * MANY),
        (list[Literal["a", "b"]], ["a"] * MANY),
        (list[Decimal], ["1.5"] * MANY),
        (list[uuid.UUID], [str(uuid.UUID(int=5))] * MANY),
        (Any, [1] * MANY),
        (pydantic.Json[list[int]], "[" + "1, " * MANY * 10 + "1]"),
        (str, "x" * 2**20),
        (int, [1] * MANY),
    ],
    ids=lambda each: str(each)[:40] if not isinstance(each, (list, dict, set, str)) else type(each).__name__,
)
def test_the_patient_check_says_the_same_as_pydantic(hint: Any, value: Any) -> None:
    check = ArgumentCheck(pydantic.TypeAdapter(hint))
    expected = checked(hint, value)
    found = checked(hint, value, check.of)
    assert found == expected
    assert type(found) is type(expected)
    assert check._patient is not None


def test_small_values_are_checked_by_pydantic_itself() -> None:
    check = ArgumentCheck(pydantic.TypeAdapter(list[int]))
    assert check.of(["1"] * LARGE_PARTS) == [1] * LARGE_PARTS
    assert check._patient is None


WRONG = 50_000


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[int], ["x"] * WRONG),
        (list[Union[int, float, None]], ["x"] * WRONG),
        (dict[str, int], {str(each): "x" for each in range(WRONG)}),
        (list[Model], [{"numbers": "x", "names": 1}] * WRONG),
        (Model, {"numbers": ["x"] * WRONG}),
        (dict[str, list[int]], {"a": ["x"] * WRONG}),
    ],
    ids=["ints", "unions", "dict", "models", "in a model", "in a dict"],
)
def test_the_first_wrong_part_ends_the_check(hint: Any, value: Any) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        ArgumentCheck(pydantic.TypeAdapter(hint)).of(value)
    assert caught.value.error_count() <= 4


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (set[int], [str(each * ONE_HASH) for each in range(5000)]),
        (set[int], [each * ONE_HASH for each in range(5000)]),
        (frozenset[tuple[int, ...]], [[each * ONE_HASH] for each in range(5000)]),
        (dict[int, Any], {str(each * ONE_HASH): 0 for each in range(5000)}),
        (set[uuid.UUID], [f"{each * ONE_HASH:032x}" for each in range(5000)]),
        (set[Decimal], [str(each * ONE_HASH) for each in range(5000)]),
        (Model, {"ids": [each * ONE_HASH for each in range(5000)]}),
    ],
    ids=["texts", "ints", "tuples", "keys", "uuids", "decimals", "in a model"],
)
def test_what_becomes_a_set_or_a_dict_of_one_hash_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(pydantic.ValidationError, match="elements or keys of one hash"):
        ArgumentCheck(pydantic.TypeAdapter(hint)).of(value)


def test_a_check_lets_other_threads_have_their_turn() -> None:
    """Python functions run between the parts: each is a place where the interpreter may change threads."""
    seen = []
    value = [str(each) for each in range(MANY)]
    beside = Aside(ThreadPoolExecutor(1))
    current.set(beside)
    check = ArgumentCheck(pydantic.TypeAdapter(list[Annotated[int, pydantic.AfterValidator(seen.append)]]))
    check.of(value)
    assert len(seen) == MANY
    seen.clear()
    beside.over.set()
    with pytest.raises(GivenUp):
        check.of(value)
    assert not seen
    current.set(None)


noted: list[str] = []


def note(value: Any) -> Any:
    noted.append(threading.current_thread().name)
    return value


def count(values: Annotated[list[int], pydantic.AfterValidator(note)]) -> int:
    """Tell how many there are."""
    return len(values)


def test_a_check_of_large_arguments_is_done_beside_the_event_loop() -> None:
    noted.clear()

    async def main() -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="beside") as threads:
            assert await TypedFunction(count).call(([1],), {}) == 1
            current.set(Aside(threads))
            assert await TypedFunction(count).call(([1] * MANY,), {}) == MANY

    asyncio.run(main())
    assert noted == [threading.current_thread().name, "beside_0"]


def test_an_argument_error_names_the_first_wrong_part_of_a_large_argument() -> None:
    def f(values: dict[str, list[int]]) -> None: ...

    values = {"a": [1] * MANY, "b": [1, "x"]}
    with pytest.raises(ArgumentError, match=r"f: values: .*unable to parse string as an integer"):
        asyncio.run(TypedFunction(f).call((values,), {}))


def test_a_decimal_that_becomes_an_int_costs_little() -> None:
    check = ArgumentCheck(pydantic.TypeAdapter(list[int]))
    began = time.thread_time()
    assert check.of([Decimal("1E400")] * MANY)[0] == 10**400
    assert time.thread_time() - began < 1.0
