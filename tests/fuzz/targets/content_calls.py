"""Calls and fenced code that a model wrote into its answer."""

from __future__ import annotations

from agent_tools.agents.turn.content_calls import Gate, calls_in
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of, texts

SCHEMAS = {"python": {"properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}}


def find_calls(parts: Parts) -> None:
    """Look for calls as a round does; what the gate lets through and holds back is the answer, nothing lost."""
    gate = Gate({"python"})
    answer = list(texts(parts))
    said = [gate.feed(text) for text in answer]
    held = gate.rest()
    whole = "".join(answer)
    assert "".join(said) + held == whole
    for call in (*calls_in(held, {"python"}, SCHEMAS), *calls_in(whole, {"python"}, SCHEMAS)):
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
        *(unfold.repeat(1, 12), unfold.repeat(11, 12)),
    ),
)
