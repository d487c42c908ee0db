"""Small inputs that stand for large ones."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz import unfold
from tests.fuzz.assemble import MOST_KEYS, Many, program
from tests.fuzz.unfold import repeat

LEAVES = st.none() | st.booleans() | st.integers(-8, 200) | st.text(max_size=20)
OBJECTS = partial(st.dictionaries, st.text(max_size=5), max_size=MOST_KEYS)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | OBJECTS(inner))


@example({str(number): None for number in range(MOST_KEYS)})
@given(VALUES)
def test_a_program_makes_the_value_it_was_made_of(value: Any) -> None:
    assert unfold.value(program(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_values_of_bounded_size(data: bytes) -> None:
    values = unfold.values(data, ("$", "set"))
    assert len(unfold.as_json(values)) < 40 * unfold.MOST_NODES + 12 * unfold.MOST_CHARS


@pytest.mark.parametrize(
    ("many", "value"),
    [
        (Many(2**61 - 1, "series", 2), [0, 2**61 - 1, 2 * (2**61 - 1), 3 * (2**61 - 1)]),
        (Many("a", "series", 1), ["a0", "a1"]),
        (Many({"a": []}, "same", 1), [{"a": []}, {"a": []}]),
        (Many(1, "keyed", 1), {"k0": 1, "k1": 1}),
        (Many(1, "nested", 2), [[[[1]]]]),
        (Many("ab", "long", 3), "ab" * 8),
    ],
)
def test_many_of_something(many: Many, value: Any) -> None:
    assert unfold.value(program(many)) == value


def test_text_is_repeated() -> None:
    assert unfold.text(b"x[]," + repeat(3, 2) + b"]") == b"x[],[],[],[],]"
    assert unfold.text(b"a" + repeat(1, 20), 100) == b"a" * 100
    assert unfold.text(b"\xf5") == unfold.text(b"\xf5\xff") == b""


def test_halves_of_characters_and_deep_values_are_json() -> None:
    assert json.loads(unfold.as_json("\ud800")) == "\ud800"
    assert unfold.as_json(unfold.value(program(Many(Many(0, "nested", 10), "nested", 10)))).startswith(b"[")
