"""Two turns of a conversation with code, as the upstream's script, and what must have become of them."""

from __future__ import annotations

import json
from typing import Any

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, INCLUDE, code
from tests.gateway.conftest import Gateway, NewGateway

__all__ = ["CODE_TOOL", "INCLUDE"]

FIRST = """x = 20
open('twenty.txt', 'w').write('20 of them')
print('x is', x)
from PIL import Image; Image.new('RGB', (3, 2))"""
SECOND = "x + 1"
LINK = "[the file](sandbox:/mnt/data/twenty.txt)"


BOTH = [ScriptedCall("python", {"code": "6 * 7"}, "ours"), ScriptedCall("get_weather", {"place": "Ulm"}, "theirs")]
CODE_AND_FUNCTION = [ScriptedReply(text="I look.", calls=BOTH, piece=4), "Take an umbrella."]


def serve(new_gateway: NewGateway) -> Gateway:
    """A gateway whose model runs code and cites a file in its first turn, and uses the variable in its second."""
    first = [code(FIRST, piece=9), ScriptedReply(text=f"Twenty, see {LINK}.", piece=5)]
    return new_gateway({"m": [*first, code(SECOND, piece=2), ScriptedReply(text="21.", piece=1)]})


def check_upstream(gateway: Gateway) -> None:
    """The model saw what its code printed, and in the second turn all of the first, whoever resent it."""
    answered, again, last = gateway.upstream.requests[1:]
    for request in (answered, again, last):
        call, result = _first_call(request)
        assert json.loads(call["arguments"]) == {"code": FIRST}
        assert "x is 20" in result
        assert "/mnt/data/twenty.txt (10 bytes)" in result
    spoken = [message["content"] for message in again["messages"] if message["role"] in ("user", "assistant")]
    assert spoken[-2:] == [f"Twenty, see {LINK}.", "And now?"]
    assert last["messages"][-1]["role"] == "tool"
    assert "21" in last["messages"][-1]["content"]


def _first_call(request: dict[str, Any]) -> tuple[dict[str, Any], str]:
    messages = request["messages"]
    place = next(number for number, message in enumerate(messages) if message.get("tool_calls"))
    (call,) = messages[place]["tool_calls"]
    assert messages[place + 1]["tool_call_id"] == call["id"]
    return call["function"], messages[place + 1]["content"]


def check_both_told(gateway: Gateway) -> None:
    """Once the client has answered its function, the model has the result of that and of its code."""
    _, answered = gateway.upstream.requests
    calls = {call["id"]: call["function"]["name"] for m in answered["messages"] for call in m.get("tool_calls") or ()}
    told = {calls[m["tool_call_id"]]: m["content"] for m in answered["messages"] if m["role"] == "tool"}
    assert told.keys() == {"python", "get_weather"}
    assert "42" in told["python"]
    assert told["get_weather"] == "Rain in Ulm."
