"""Calls that an answer only shows, in reasoning, and beside other calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from agent_tools.agents.steps import Step
from agent_tools.agents.turn.call_reader import calls_in
from agent_tools.agents.turn.round import REPAIRED, Round
from agent_tools.models.base import CallComplete, CallStarted, Delta, Finish, ReasoningDelta, TextDelta
from agent_tools.models.chunks import ChunkReader
from tests.call_forms import TRICKY_CODES, bare_calls, written_calls
from tests.prose_with_calls import FUNCTION, PROSE, TAGGED

SCHEMAS = {"python": {"type": "object", "properties": {"code": {"type": "string"}}}}
SIZES = (1, 3, 10_000)


def read(deltas: Iterator[Delta] | list[Delta]) -> Round:
    answer = Round(1, {"python": lambda arguments: arguments}, schemas=SCHEMAS)
    steps: list[Step] = list(answer.read(iter(deltas)))
    assert "".join(step.text for step in steps if isinstance(step, TextDelta)) == str(answer.text)
    assert "".join(step.text for step in steps if isinstance(step, ReasoningDelta)) == str(answer.reasoning)
    return answer


def said(text: str, size: int = 3) -> Iterator[Delta]:
    """A reply whose text comes in pieces, as a server without any parser sends it."""
    reader = ChunkReader()
    for at in range(0, len(text), size):
        yield from reader.read({"choices": [{"delta": {"content": text[at : at + size]}}]})
    yield from reader.read({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    yield from reader.finish()


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_a_call_that_an_answer_only_shows_is_text(text: str) -> None:
    for size in SIZES:
        answer = read(said(text, size))
        assert (answer.calls, str(answer.text)) == ([], text.removesuffix("<|call|>") if size else "")


BARE = "print(6 * 7)"
WRITTEN = {
    "a namespace in symbols": ']<]x[>[<tool_call>\n]<]x[>[<invoke name="python">\n]<]x[>[<code>CODE]<]x[>[</code>\n'
    "]<]x[>[</invoke>\n]<]x[>[</tool_call>",
    "a list between tokens": "<|call_list_start|>[python(code='CODE')]<|call_list_end|>",
    "a name as key": '<|prefix|>[{"python": {"code": "CODE"}}]<|suffix|>',
    "capitals": '[CALL]{"name": "python", "arguments": {"code": "CODE"}}[END_CALL]',
    "arrows": '[CALL]\n{tool => "python", args => {\n  --code "CODE"\n}}\n[/CALL]',
    "a word before an array": 'functions[{"name": "python", "arguments": {"code": "CODE"}}]',
    "sections without tokens": 'commentary to=functions.python json{"code": "CODE"}',
    "thinking and a section in words": 'analysisI do.assistantcommentary to=functions.python json{"code": "CODE"}',
    "a prompt": ">>>python\nCODE",
    "the token of code": "<|python_tag|>CODE<|eom_id|>",
    "a method": '<|python_tag|>python.call(code="CODE")',
    "a tag of the name": "<python>\nCODE\n</python>",
    "a tag of the name and of the key": "<python>\n<code>CODE</code>\n</python>",
    "tags for all": "<use>\n<tool_name>python</tool_name>\n<parameters>\n<code>CODE</code>\n</parameters>\n</use>",
    "tags that come twice": '<invoke name="python"><invoke name="python">\n<parameter name="code">CODE</parameter>\n'
    "</invoke>",
    "many tokens before the name": "<|calls|>" * 20 + '<|call|>python<|sep|>{"code": "CODE"}<|call_end|>',
    "attributes": '<call name="python" code="CODE"/>',
    "attributes of the name's tag": '<python code="CODE" />',
    "CDATA": '<invoke name="python"><parameter name="code"><![CDATA[CODE]]></parameter></invoke>',
    "a fence after the name": "<tool_call>\npython\n```python\nCODE\n```\n</tool_call>",
    "a fence in the name's tag": "<python>\n```python\nCODE\n```\n</python>",
    "a name under function": '{"function": "python", "parameters": {"code": "CODE"}}',
    "a message": '{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "python", '
    '"arguments": {"code": "CODE"}}}]}',
    "a thought before": '{"thought": "I \\"do\\".", "action": "python", "action_input": {"code": "CODE"}}',
    "typographic quotes": "<tool_call>{“name”: “python”, “arguments”: {“code”: “CODE”}}</tool_call>",
    "a comment": '<tool_call>{"name": "python", /* go */ "arguments": {"code": "CODE"}}</tool_call>',
    "a prefix and an end mark": '[|tool|]tool_python{"code": "CODE"}[|end|]',
    "doubled braces": '<tool_call>\n{{"name": "python", "arguments": {"code": "CODE"}}}\n</tool_call>',
    "a comma": '<tool_call>\n{"name": "python", "arguments": {"code": "CODE",}}\n</tool_call>',
    "single quotes": "<tool_call>\n{'name': 'python', 'arguments': {'code': 'CODE'}}\n</tool_call>",
    "a missing brace": '<tool_call>\n{"name": "python", "arguments": {"code": "CODE"}\n</tool_call>',
    "an unclosed parameter": "<tool_call>\n<function=python>\n<parameter=code>\nCODE\n</function>\n</tool_call>",
    "a flat object": '{"tool": "python", "code": "CODE"}',
    "other words": '{"action": "python", "action_input": {"code": "CODE"}}',
    "a wrapper": '{"tool_call": {"name": "python", "arguments": {"code": "CODE"}}}',
    "elements between tokens": '<|open|>tools<|sep|><|open|>call tool="python" index="1"<|sep|>'
    '<|open|>argument key="code" type="string"<|sep|>CODE<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|>",
    "a namespace in doubled bars": '<｜｜X｜｜ calls>\n<｜｜X｜｜ invoke name="python">\n'
    '<｜｜X｜｜ parameter name="code" string="true">CODE</｜｜X｜｜ parameter>\n'
    "</｜｜X｜｜ invoke>\n</｜｜X｜｜ calls>",
    "tags that begin with a space": '< invoke name="python">\n< parameter name="code">CODE</parameter>\n</invoke>',
    "tags of one word": '<functionname="python"><paramname="code">CODE</param></function>',
    "a word in brackets": '[Calling tool: python({"code": "CODE"})]',
    "tokens without a use": '[unused11][{"name": "python", "arguments": {"code": "CODE"}}][unused12]',
    "a label": '**Tool Call:**\n\n```json\n{"name": "python", "arguments": {"code": "CODE"}}\n```',
    "a label of tags": 'call\n<invoke name="python">\n<parameter name="code">CODE</parameter>\n</invoke>',
    "words that were a token": 'function call<|role_sep|>\n{"name": "python", "arguments": {"code": "CODE"}}',
    "symbols and a colon": '✿FUNCTION✿: python\n✿ARGS✿: {"code": "CODE"}\n✿RESULT✿',
    "a tag with a colon": "<tool: python>\nCODE\n</tool>",
    "a name between tags, and JSON": '<call>\n<tool>python</tool>\n<parameters>{"code": "CODE"}</parameters>\n</call>',
    "a server's name before": "<use_tool>\n<server_name>a</server_name>\n<tool_name>python</tool_name>\n<arguments>\n"
    '{"code": "CODE"}\n</arguments>\n</use_tool>',
    "a word before the name": '<tool_call>function\npython\n{"code": "CODE"}</tool_call>',
    "an end that is cut": "<tool_call>python<arg_key>code</arg_key><arg_value>CODE</arg_value></tool_cal",
    "line ends that were escaped": "<tool_call>python\\n<arg_key>code</arg_key>\\n<arg_value>CODE</arg_value>\n"
    "</tool_call>",
    "types of values": "<x|call>python\n<x|arg_key>code</x|arg_key>\n<x|arg_type>string</x|arg_type>\n"
    "<x|arg_value>CODE</x|arg_value>\n</x|call>",
    "typographic quotes in tags": "<invoke name=“python”>\n<parameter name=“code”>CODE</parameter>\n</invoke>",
    "a name under type": '<|tool_call|>[{"arguments": {"code": "CODE"}, "type": "python"}]',
    "a path, and no space": '<tool_call>Code/python>{"code": "CODE"}',
    "a turn made up": '<tool_call>\n{"name": "python", "arguments": {"code": "CODE"}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n41\n</tool_response><|im_end|>",
    "tokens with colons": '<|x:begin_name:x|>python<|x:end_name:x|><|x:begin_args:x|>{"code": "CODE"}<|x:end_args:x|>',
    "a result made up": f"{TAGGED.replace('print(1)', 'CODE')}\n<tool_response>\n41\n</tool_response>\nIt is 41.",
    "thinking that is not closed": f"<think>\nI do.\n\n{FUNCTION.replace('print(1)', 'CODE')}",
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_call_in_any_frame_is_read(text: str) -> None:
    for size in SIZES:
        answer = read(said(text.replace("CODE", BARE), size))
        (call,) = answer.calls
        code = json.loads(call.arguments)["code"] if call.arguments.startswith("{") else call.arguments
        assert (call.name, code.strip(), str(answer.text)) == ("python", BARE, "")


@pytest.mark.parametrize("code", TRICKY_CODES)
def test_code_that_looks_like_tokens_runs_as_it_was_written_or_not_at_all(code: str) -> None:
    for form, text in {**written_calls("python", code), **bare_calls("python", code)}.items():
        for size in SIZES:
            answer = read(said(text, size))
            assert ([code_of(call.arguments) for call in answer.calls], str(answer.text)) == ([code], ""), form


def code_of(arguments: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        arguments = json.loads(arguments)["code"]
    return arguments.strip("\n")


@pytest.mark.parametrize(
    "text",
    [
        "<function=python><parameter=code>a = 1</parameter><parameter=code>print(a)</parameter></function>",
        '<tool_call>{"name": "python", "arguments": {"code": "a = 1", "code": "print(a)"}}</tool_call>',
        '<python code="print(3 > 2)"></python>',
        "<|python_tag|>json {1, 2}<|eom_id|>",
    ],
)
def test_a_call_whose_code_is_not_certain_is_text(text: str) -> None:
    for size in SIZES:
        answer = read(said(text, size))
        assert (answer.calls, str(answer.text)) == ([], text.removesuffix("<|eom_id|>"))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<python code=\"total = 5; print('x')\"/>", {"code": "total = 5; print('x')"}),
        ('<python code="print(t)  # it\'s" n="3"/>', {"code": "print(t)  # it's", "n": 3}),
        ("<call name=\"python\" n='3' code='say(\"hi\")'></call>", {"n": 3, "code": 'say("hi")'}),
        ('<python code="x = "a" + "b""/>', {"code": 'x = "a" + "b"'}),
        ('<python code="search"/>', {"code": "search"}),
    ],
)
def test_attributes_are_read_whole_and_by_their_types(text: str, arguments: dict[str, Any]) -> None:
    schema = {"properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}
    (call,) = calls_in(text, {"python": True, "search": False}, {"python": schema})
    assert (call.name, json.loads(call.arguments)) == ("python", arguments)


def test_a_call_that_was_repaired_says_so() -> None:
    assert [call.note for call in read(said(WRITTEN["a comma"])).calls] == [REPAIRED]
    assert [call.note for call in read(said(TAGGED)).calls] == [""]


@pytest.mark.parametrize("call", [TAGGED, FUNCTION])
def test_a_call_in_reasoning_is_made_if_nothing_else_comes(call: str) -> None:
    thought = [ReasoningDelta(f"I do.\n{call}"[at : at + 3]) for at in range(0, len(call) + 6, 3)]
    answer = read([*thought, Finish("stop")])
    assert ([each.name for each in answer.calls], str(answer.reasoning)) == (["python"], "I do.\n")
    answer = read([*thought, TextDelta("It is 42."), Finish("stop")])
    assert (answer.calls, str(answer.reasoning), str(answer.text)) == ([], f"I do.\n{call}", "It is 42.")


def native(arguments: str) -> list[Delta]:
    return [CallStarted(0, "c", "python"), CallComplete(0, "c", "python", arguments)]


@pytest.mark.parametrize("markup", [TAGGED, "<tool_call>\n", "</tool_call>", "<|calls_section_begin|>"])
def test_markup_beside_the_same_call_is_not_shown(markup: str) -> None:
    calls = native('{"code": "print(1)"}')
    for deltas in ([TextDelta(markup), *calls], [*calls, TextDelta(markup)]):
        answer = read([*deltas, Finish("tool_calls")])
        assert ([call.id for call in answer.calls], str(answer.text)) == (["c"], "")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("python<arg_key>code</arg_key><arg_value>print(1)</arg_value>", "{}"),
        ('python{"code": "print(1)"}', ""),
        ('python(code="print(1)")', "{}"),
        ("python", "<parameter=code>\nprint(1)\n</parameter>"),
        ("python", "<arg_key>code</arg_key><arg_value>print(1)</arg_value>"),
    ],
)
def test_a_call_within_a_name_and_arguments_between_tags_are_read(name: str, arguments: str) -> None:
    answer = read([CallStarted(0, "c", name), CallComplete(0, "c", name, arguments), Finish("tool_calls")])
    assert [(call.name, call.arguments) for call in answer.calls] == [("python", '{"code": "print(1)"}')]
