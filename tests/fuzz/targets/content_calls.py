"""Calls and fenced code that a model wrote into its answer."""

from __future__ import annotations

from agent_tools.agents.turn.call_gate import CallGate
from agent_tools.agents.turn.call_reader import calls_in
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts

DECLARED = {"python": True}
SCHEMAS = {"python": {"properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}}


def find_calls(parts: Parts) -> None:
    """Look for calls as a round does; what the gate lets through and holds back is the answer, nothing lost."""
    gate = CallGate(DECLARED)
    answer = list(texts(parts))
    said = [gate.feed(text) for text in answer]
    held = gate.rest()
    whole = "".join(answer)
    assert "".join(said) + held == whole
    for call in (*calls_in(held, DECLARED, SCHEMAS), *calls_in(whole, DECLARED, SCHEMAS)):
        assert call.name == "python"
        assert isinstance(call.arguments, str)


TARGET = Target(
    find_calls,
    pieces_of,
    words=(
        *(
            b"<tool_call>",
            b"</tool_call>",
            b"<|python_tag|>",
            b"<|eom_id|>",
            b"```json\n",
            b"```python\n",
            b"\n```",
            b"```",
        ),
        *(b"<function=python>", b"<parameter=code>", b"<parameter=n>", b"</parameter>", b"</function>", b"<function="),
        *(b'{"name": "python", "arguments": {', b'"parameters": ', b'"input": ', b'{"function": ', b"[{", b"}]", b";"),
        *(b"<", b"<|", b"<|start|>assistant", b"<|channel|>", b"<seed:tool_call>", b"]<]x[>[", b">>>python\n"),
        *(
            "<｜tool▁call▁begin｜>".encode(),
            "<｜DSML｜".encode(),
            b"[TOOL_CALLS]",
            b"<tool_response>",
            b"=>",
            b"--code ",
        ),
        *(b"commentary to=python", b"<|message|>", b"<|call|>", b"<|tool_call_argument_begin|>", b"<|tool_call_end|>"),
        *("<｜tool▁sep｜>".encode(), "<｜tool▁call▁end｜>".encode(), b"[ARGS]", b"[CALL_ID]", b"\n```json\n"),
        *(
            b"<arg_key>",
            b"</arg_key>",
            b"<arg_value>",
            b"</arg_value>",
            b"python",
            b"call:python{",
            b'<|"|>',
            b"<escape>",
        ),
        *(b'<invoke name="python">', b'<parameter name="code">', b"</parameter>", b"</invoke>", b"<tool_call|>"),
        *(b"[python(", b"code='", b"', n=", b")]", b"\\", b"'''"),
        *(unfold.repeat(1, 12), unfold.repeat(11, 12)),
    ),
)
