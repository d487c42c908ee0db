import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.agents.turn.call_gate import CallGate
from agent_tools.agents.turn.call_reader import calls_in
from agent_tools.code_fences import python_blocks
from agent_tools.messages import FunctionCall

SIZES = (1, 2, 7, 1000)  # characters that come at once
DECLARED = {"python": True, "f": False}
CALL = '{"name": "python", "arguments": {"code": "a = 1; print(a)"}}'
FOUND = FunctionCall("python", '{"code": "a = 1; print(a)"}')
OTHER = FunctionCall("f", "{}")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        pytest.param(CALL, (FOUND,), id="plain"),
        pytest.param(f"\n  {CALL} \n", (FOUND,), id="space around"),
        pytest.param(CALL.replace("arguments", "parameters"), (FOUND,), id="parameters"),
        pytest.param(CALL.replace("arguments", "input"), (FOUND,), id="input"),
        pytest.param(f"```json\n{CALL}\n```", (FOUND,), id="fenced"),
        pytest.param(f"```\n{CALL}\n```", (FOUND,), id="fenced without a language"),
        pytest.param(f"<tool_call>\n{CALL}\n</tool_call>", (FOUND,), id="tagged"),
        pytest.param(f"<tool_call>{CALL}", (FOUND,), id="tag left open"),
        pytest.param(f"<|python_tag|>{CALL}<|eom_id|>", (FOUND,), id="python tag"),
        pytest.param(f"[{CALL}]", (FOUND,), id="array"),
        pytest.param(f'[{CALL}, {{"name": "f", "arguments": {{}}}}]', (FOUND, OTHER), id="array of two"),
        pytest.param(f'{CALL}; {{"name": "f", "parameters": {{}}}}', (FOUND, OTHER), id="two with a semicolon"),
        pytest.param(f'{CALL}\n{{"name": "f", "input": null}}', (FOUND, OTHER), id="two lines"),
        pytest.param(f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", (FOUND, FOUND), id="two tagged"),
        pytest.param(f'{{"type": "function", "function": {CALL}}}', (FOUND,), id="nested"),
        pytest.param('{"name": "python", "arguments": "print(1)"}', (FunctionCall("python", "print(1)"),), id="string"),
        pytest.param(
            '{"name": "python", "arguments": {"code": "a\nb"}}',
            (FunctionCall("python", '{"code": "a\\nb"}'),),
            id="raw newline in a string",
        ),
        pytest.param('{"name": "Alice"}', (), id="no arguments"),
        pytest.param('{"name": "python", "age": 3}', (), id="an ordinary object"),
        pytest.param('{"name": "other", "arguments": {}}', (), id="not declared"),
        pytest.param(f'[{CALL}, {{"name": "other", "arguments": {{}}}}]', (), id="one of two not declared"),
        pytest.param('{"name": "f", "arguments": {}, "input": {}}', (), id="two kinds of arguments"),
        pytest.param('{"name": "f", "arguments": [1]}', (), id="arguments of no use"),
        pytest.param(f"Here it is: {CALL}", (), id="words before"),
        pytest.param(f"{CALL} That is it.", (), id="words after"),
        pytest.param(CALL[:-3], (), id="not whole"),
        pytest.param("[1, 2]", (), id="numbers"),
        pytest.param("[]", (), id="nothing in it"),
        pytest.param("", (), id="empty"),
        pytest.param("<tool_call></tool_call>", (), id="tags only"),
        pytest.param("[" * 100_000, (), id="deep"),
    ],
)
def test_calls_in_a_text(text: str, calls: tuple[FunctionCall, ...]) -> None:
    assert calls_in(text, DECLARED) == calls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Hello there", "Hello there"),
        ("  Hello", "  Hello"),
        ("{} is a dict", "{} is a dict"),
        ("{x}", "{x}"),
        ("[link](url)", "[link](url)"),
        ("```python\nprint(1)\n```", "```python\nprint(1)\n"),
        ("```json\n3\n```\nx", "```json\n3\n```\nx"),
        ("`code`", "`code`"),
        (CALL, ""),
        (f"[{CALL}]", ""),
        (f"```json\n{CALL}\n```", ""),
        (f"I will. <tool_call>{CALL}</tool_call>", "I will. "),
        (f"I will. <|python_tag|>{CALL}", "I will. "),
        ("Write <tool_call> first. " + "It is a tag. " * 50, "Write <tool_call> first. " + "It is a tag. " * 50),
        ("<function=un of> <|channel|>final<|message|>.", "<function=un of> <|channel|>final<|message|>."),
        ("a <tool_box> b < c, d", "a <tool_box> b < c, d"),
    ],
)
def test_what_the_gate_lets_through(text: str, shown: str) -> None:
    assert {size: through_the_gate(text, size) for size in SIZES} == dict.fromkeys(SIZES, (shown, text[len(shown) :]))


def through_the_gate(text: str, size: int) -> tuple[str, str]:
    """The text that a gate lets through when it comes in pieces of a size, and the rest that it holds back."""
    gate = CallGate(DECLARED)
    return "".join(gate.feed(text[n : n + size]) for n in range(0, len(text), size)), gate.rest()


def test_the_gate_holds_back_only_what_may_be_a_tag() -> None:
    gate = CallGate(DECLARED)
    assert gate.feed("a <to") == "a "
    assert gate.feed("p>") == ""
    assert gate.feed(" is a tag") == "<top> is a tag"


@given(st.lists(st.text('ab{["`<tol_ca>|\n pyhnjs', max_size=12), max_size=8))
def test_the_gate_loses_nothing(pieces: list[str]) -> None:
    gate = CallGate(DECLARED)
    assert "".join(map(gate.feed, pieces)) + gate.rest() == "".join(pieces)


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
json_objects = st.dictionaries(st.text(max_size=5), leaves | st.lists(leaves, max_size=3), max_size=4)
wrappings = st.sampled_from(["{}", "```json\n{}\n```", "<tool_call>\n{}\n</tool_call>", "<|python_tag|>{}", "[{}]"])


@given(json_objects, wrappings, st.sampled_from(["arguments", "parameters", "input"]))
def test_every_call_is_found_however_it_is_wrapped(arguments: dict[str, Any], wrapping: str, key: str) -> None:
    text = wrapping.replace("{}", json.dumps({"name": "f", key: arguments}))
    gate = CallGate(DECLARED)
    assert gate.feed(text) == ""
    (call,) = calls_in(gate.rest(), DECLARED)
    assert json.loads(call.arguments) == arguments


@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    assert calls_in(text, DECLARED) == ()


def test_python_blocks() -> None:
    text = "First:\n```python\na = 1\n```\nthen\n~~~\n```py\nprint('''x\n''')\n```\n```sh\nls\n```\n```python\nopen"
    assert python_blocks(text) == ("a = 1", "print('''x\n''')")


def test_many_ids_before_a_call_cost_no_more_than_they_are_long() -> None:
    began = time.thread_time()
    gate = CallGate(DECLARED)
    assert gate.feed("{" + '"id":1,' * 500_000) != ""
    assert time.thread_time() - began < 1


def test_invalid_escapes_in_calls_keep_their_backslashes() -> None:
    (call,) = calls_in(r"""{"name": "python", "arguments": {"code": "re.findall(r'\d+', \'a1\')"}}""", DECLARED)
    assert json.loads(call.arguments) == {"code": r"re.findall(r'\d+', 'a1')"}


def test_a_fence_in_a_string_does_not_end_a_block() -> None:
    code = "q = '''\n```sql\nselect 1\n```\n'''\nprint(q)"
    assert python_blocks(f"Run:\n```python\n{code}\n```\nThanks.") == (code,)
    assert python_blocks("```python\n%%writefile a.md\n```\nx\n```\n```") == ()
