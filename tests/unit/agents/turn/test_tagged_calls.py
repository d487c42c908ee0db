"""Calls whose parameters stand between tags."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.agents.turn.content_calls import Gate, calls_in
from agent_tools.agents.turn.tagged_calls import tagged_calls
from agent_tools.messages import FunctionCall

SCHEMA = {
    "properties": {
        "code": {"type": "string"},
        "n": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "any": {},
    }
}
SCHEMAS = {"f": SCHEMA}


def call(*parameters: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters)
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


def found(text: str) -> tuple[FunctionCall, ...]:
    return calls_in(text, {"f"}, SCHEMAS)


def arguments(text: str) -> list[dict[str, Any]]:
    return [json.loads(each.arguments) for each in found(text)]


def test_values_are_text_or_what_the_schema_says() -> None:
    given = [
        ("code", "a = 1\n\nprint('<b>')"),
        ("n", "5"),
        ("maybe", "null"),
        ("either", "6"),
        ("any", "7"),
        ("no", "8"),
    ]
    (read,) = arguments(call(*given))
    assert read == {"code": "a = 1\n\nprint('<b>')", "n": 5, "maybe": None, "either": "6", "any": "7", "no": "8"}
    assert arguments(call(("n", "five"), ("maybe", "NaN"))) == [{"n": "five", "maybe": "NaN"}]
    assert arguments(call(("n", "[" * 100_000))) == [{"n": "[" * 100_000}]


def test_several_calls_and_left_out_tags() -> None:
    assert arguments(call(("n", "1")) + "\n" + call(("n", "2"))) == [{"n": 1}, {"n": 2}]
    assert arguments("<function=f><parameter=n>1</parameter></function>") == [{"n": 1}]
    assert arguments("<tool_call>\n<function=f>\n</function>") == [{}]
    assert arguments("<function=f>") == [{}]


@pytest.mark.parametrize(
    "text",
    [
        call(("n", "1")) + " Done.",
        f"It is {call(('n', '1'))}",
        call(("n", "1")).replace("=f>", "=g>"),
        call(("n", "1")).replace("</parameter>", ""),
        "<function=f>words</function>",
        "<function=>",
        "<function=" + "f" * 300 + ">",
    ],
)
def test_all_else_is_text(text: str) -> None:
    assert found(text) == ()


@given(st.lists(st.text("<>/=fparmetunciol_\n "), max_size=20))
def test_any_text_can_be_looked_at(parts: list[str]) -> None:
    text = "<function=f>" + "".join(parts)
    gate = Gate({"f"})
    assert "".join(map(gate.feed, text)) + gate.rest() == text
    assert all(each.name == "f" for each in found(text))


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ('{"name": "f", ', True),
        ('{"name": "g", ', False),
        ('{"name": 5', False),
        ('{"name": "f', True),
        ('[{"type": "function", ', True),
        ('{"type": "text", ', False),
        ('{"function": {', True),
        ('{"function": "x"', False),
        ('{"arguments": {"a": 1}', True),
        ('{"parameters": 5', False),
        ('{"id": "a", "name": "f"', True),
        ('{"id": 5, "na', True),
        ('{"id": 5, "nation": ', False),
        ('{"answer": 42', False),
        ('```json\n{"answer": 42', False),
        ('```json\n{"name": "f"', True),
    ],
)
def test_json_waits_only_while_it_may_be_a_call(text: str, is_held: bool) -> None:
    for size in (1, 3, 100):
        gate = Gate({"f"})
        said = "".join(gate.feed(text[n : n + size]) for n in range(0, len(text), size))
        assert said == ("" if is_held else text)


def test_white_space_between_calls_takes_no_memory() -> None:
    text = "<tool_call>" + " " * 1_000_000 + "</tool_call><tool_call>" * 10_000 + "<function=f></function>"
    tracemalloc.start()
    try:
        assert [call.name for call in tagged_calls(text, {})] == ["f"]
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
