"""Names of servers' tools for models and code: each tool has its own."""

from __future__ import annotations

from itertools import combinations

import pytest

from agent_tools.gateway.responses.mcp_names import code_name, model_name

ALIKE = [
    ("box", "say.it"),
    ("box", "say_it"),
    ("box", "say/it"),
    ("a", "b__c"),
    ("a__b", "c"),
    ("a", "_b"),
    ("a_", "b"),
    ("box", f"{'x' * 70}.y"),
    ("box", f"{'x' * 70}_y"),
]


def test_no_two_tools_have_one_name() -> None:
    for first, second in combinations(ALIKE, 2):
        assert model_name(*first) != model_name(*second)
        assert code_name(*first, is_marked=True) != code_name(*second, is_marked=True)
    assert all(len(model_name(*each)) <= 64 for each in ALIKE)


@pytest.mark.parametrize(
    ("label", "name", "for_code"),
    [("box", "add", "box_add"), ("box", "say.it", "box_say_it"), ("_x", "add", "mcp_x_add"), ("a", "ﬁ", "a_fi")],
)
def test_code_reads_plain_names(label: str, name: str, for_code: str) -> None:
    assert code_name(label, name) == for_code


def test_a_plain_name_is_kept() -> None:
    assert model_name("box", "add") == "box__add"
