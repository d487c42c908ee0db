"""Plain data from what a kernel shows of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.execution import Execution, Result, Stream
from agent_tools.plain_value import MAX_CHARS, MAX_PARTS, plain_value

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    assert plain_value(repr(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "np.float64(1.0)",
        "<object object at 0x7f>",
        "   a  b\n0  1  2",
        "[1, 2, ...]",
        "{'a': [1, (2, ...)]}",
        "__import__('os').system('true')",
        "1 +",
        "(" * 300,
        "[" * 300 + "]" * 300,
        "-" * 5_000 + "1",
        "'" + "a" * MAX_CHARS + "'",
        "[" + "1," * (MAX_PARTS + 1) + "]",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert plain_value(text) is None


def test_an_execution_has_the_value_of_its_result() -> None:
    assert Execution((Stream("stdout", "1"),)).value is None
    assert Execution((Result({"text/plain": "{'a': [1, 2.5, None]}"}),)).value == {"a": [1, 2.5, None]}
    assert Execution((Result({"text/plain": "array([1, 2])"}),)).value is None
