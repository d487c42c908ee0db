"""Variables as the code that sets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.errors import InvalidParams
from agent_tools.sandbox.passed_variables import MAX_BYTES, assignments

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{5,9}", fullmatch=True), JSON, max_size=5))
def test_they_are_there_as_they_were(variables: dict[str, object]) -> None:
    names: dict[str, object] = {}
    exec(assignments(variables), names)
    assert {name: names[name] for name in variables} == variables


@pytest.mark.parametrize("variables", [{"a b": 1}, {"class": 1}, {"": 1}, {1: 1}, {"x": object()}, {"x": {1, 2}}])
def test_what_cannot_be_one_is_refused_by_name(variables: dict[str, object]) -> None:
    with pytest.raises(InvalidParams):
        assignments(variables)


def test_a_name_is_set_as_python_reads_it() -> None:
    names: dict[str, object] = {}
    exec(f"{assignments({'ﬁ': 1})}\nfound = ﬁ", names)
    assert names["found"] == 1
    with pytest.raises(InvalidParams):
        assignments({"ｉｆ": 1})


def test_variables_too_large_for_a_request_are_refused() -> None:
    assert len(assignments({"x": "a" * (MAX_BYTES - 100)})) > MAX_BYTES - 100
    with pytest.raises(InvalidParams, match="write_file"):
        assignments({"x": "a" * (MAX_BYTES - 100), "y": "\\" * 100})


def test_a_name_that_is_code_runs_nothing() -> None:
    with pytest.raises(InvalidParams):
        assignments({"x'); print('y": 1})
