"""Plain data from what a kernel shows of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.results.execution import Execution, Result, Stream
from agent_tools.results.plain_data import MAX_CHARS, MAX_PARTS, plain_value

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
    ("text", "value"),
    [
        *(("inf", math.inf), ("-inf", -math.inf), ("{'auc': [inf, (-inf,)]}", {"auc": [math.inf, (-math.inf,)]})),
        *(("np.float64(3.5)", 3.5), ("np.int64(-3)", -3), ("np.uint8(3)", 3), ("np.str_('a')", "a")),
        *(("np.True_", True), ("[np.False_, np.float32(inf)]", [False, math.inf])),
        ("{np.int64(1): np.complex128(1+2j)}", {1: 1 + 2j}),
    ],
)
def test_numbers_without_a_literal_have_a_value(text: str, value: object) -> None:
    assert plain_value(text) == value


def test_nan_has_a_value() -> None:
    first, (second, third) = plain_value("nan"), plain_value("[nan, np.float64(nan)]")
    assert all(map(math.isnan, (first, second, third)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        *("np.float64()", "np.float64(1, 2)", "np.float64([1], x=1)", "np.array([1])", "xp.float64(1.0)", "np.nan(1)"),
        *("np.float64(np.float64(1))", "nan()", "np.float64(f(1))", "inf.real", "NaN"),
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
