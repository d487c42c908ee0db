"""Calls in the forms of chat templates."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.agents.turn.call_gate import CallGate
from agent_tools.agents.turn.call_reader import calls_in
from agent_tools.messages import FunctionCall
from tests.call_forms import written_calls

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
    return calls_in(text, {"f": False}, SCHEMAS)


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
        "<function=f>words</function>",
        "<function=>",
        "<function=" + "f" * 300 + ">",
        '{"name": "f", "tool_name": "f", "parameters": {}}',
    ],
)
def test_all_else_is_text(text: str) -> None:
    assert found(text) == ()


@given(st.lists(st.text("<>/=fparmetunciol_\n "), max_size=20))
def test_any_text_can_be_looked_at(parts: list[str]) -> None:
    text = "<function=f>" + "".join(parts)
    gate = CallGate({"f": False})
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
        gate = CallGate({"f": False})
        said = "".join(gate.feed(text[n : n + size]) for n in range(0, len(text), size))
        assert said == ("" if is_held else text)


CODE = {"code": "print(\"a\")\n'b' # \u00e9"}
FORMS = written_calls("python", CODE["code"])
AT_THE_START = ("Python", "Command R", "a fence")
"""Forms with no token of their own: they are calls only where nothing stands before them."""


def through_the_gate(text: str, size: int) -> tuple[str, tuple[FunctionCall, ...]]:
    gate = CallGate({"python": True})
    shown = "".join(gate.feed(text[n : n + size]) for n in range(0, len(text), size))
    assert shown + gate.rest() == text
    return shown, calls_in(gate.rest(), {"python": True}, {"python": SCHEMA})


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_every_form_is_read_and_text_before_it_is_shown(form: str) -> None:
    for before in ("", "I will: [a] <b> ``c``.\n\n")[: 1 if form in AT_THE_START else 2]:
        for size in (1, 3, 10_000):
            shown, (found,) = through_the_gate(before + FORMS[form], size)
            assert (shown, found.name, json.loads(found.arguments)) == (before, "python", CODE)


@pytest.mark.parametrize("form", FORMS)
def test_quoted_and_cut_calls_and_calls_of_other_functions_are_text(form: str) -> None:
    declared, schemas = {"python": True}, {"python": SCHEMA}
    call = FORMS[form]
    assert calls_in(f"{call} is how it calls.", declared, schemas) == ()
    assert calls_in(call[: call.index("print") + 3], declared, schemas) == ()
    assert calls_in(call, {"other": False}, schemas) == ()
    gate = CallGate({"other": False})
    assert "".join(map(gate.feed, call + " " * 2_000)).rstrip() == call, "it is shown at once"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>", ["print(6 * 7)"]),
        ("<|channel|>commentary to=python <|constrain|>json<|message|><|call|>", ["{}"]),
        ("<|start|>assistant to=python<|channel|>commentary json<|message|>", ["{}"]),
        ("<|channel|>commentary to=python<|message|>{'a'}<|call|>" * 2, ["{'a'}"] * 2),
        (r"<|tool_call_begin|>python<|tool_call_argument_begin|>{'a' \d}<|tool_call_end|>", [r"{'a' \d}"]),
        ("[TOOL_CALLS]python[ARGS]{}[TOOL_CALLS]python{}", ["{}", "{}"]),
        ("<tool_call>python\n</tool_call>", ["{}"]),
        ("<tool_call>python<arg_key>n</arg_key><arg_value>5</arg_value></tool_call>", ['{"n": 5}']),
        (
            '<｜DSML｜invoke name="python"><｜DSML｜parameter name="x" string="false">[1]</｜DSML｜parameter>',
            ['{"x": [1]}'],
        ),
        (
            '<|tool_call>call:python{a:{b:[1,true],"c":null},d:-1.5}<tool_call|>',
            ['{"a": {"b": [1, true], "c": null}, "d": -1.5}'],
        ),
        (
            r"""[python(), python(a=[1], b=True, c='\u00e9\x41\n\d', d='''x'y''')]""",
            ["{}", r"""{"a": [1], "b": true, "c": "éA\n\\d", "d": "x'y"}"""],
        ),
        (
            r"""[python(a=["a" 'b', "c"], b='x' "y", c='\033[0m\0')]""",
            [r"""{"a": ["ab", "c"], "b": "xy", "c": "\\033[0m\\0"}"""],
        ),
        ("[python(1)]", []),
        ("[python(a=b)]", []),
        ("[python(a=1) and python()]", []),
        ('<|tool_call>call:python{a:<|"|>b}', []),
        ("<|tool_call>call:python{a}", []),
        ("<|tool_call_begin|>python<|tool_call_argument_begin|>[1]", []),
        ("<tool_call>python<arg_key>n</arg_key><arg_value>5</tool_call>", ['{"n": 5}']),
        ("<tool_call>python<arg_key>n</arg_key><arg_value>5", []),
    ],
)
def test_arguments_are_read_as_the_form_has_them(text: str, arguments: list[str]) -> None:
    assert [call.arguments for call in calls_in(text, {"python": True}, {"python": SCHEMA})] == arguments


def test_white_space_between_calls_takes_no_memory() -> None:
    text = "<tool_call>" + " " * 1_000_000 + "</tool_call><tool_call>" * 10_000 + "<function=f></function>"
    tracemalloc.start()
    try:
        assert [call.name for call in calls_in(text, {"f": False})] == ["f"]
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
