"""The contracts of models and tools, as checks for a test of your own.

def test_my_model_keeps_the_contract():
    check_model(MyModel(), [{"role": "user", "content": "Say hello."}])
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agent_tools.errors import ToolServiceError
from agent_tools.messages import ContentItem
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Conversation,
    Delta,
    Finish,
    FunctionDefinition,
    JsonObject,
    Model,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from agent_tools.tools.base import BaseTool, is_tool_schema


def check_model(model: Model, messages: Conversation, tools: tuple[FunctionDefinition, ...] = ()) -> list[Delta]:
    """Ask a model once, check its deltas against the contract of `Model.reply`, and return them.

    Raises:
        AssertionError: it breaks the contract; the message says where.
    """
    assert isinstance(model, Model), "it has no method reply(messages, tools, options)"
    before = json.dumps(list(map(str, messages)))
    deltas = list(model.reply(messages, tools, {}))
    assert json.dumps(list(map(str, messages))) == before, "it changed the conversation it was given"
    kinds = (TextDelta, ReasoningDelta, CallStarted, ArgumentsDelta, CallComplete, Usage, Finish)
    for delta in deltas:
        assert isinstance(delta, kinds), f"{delta!r} is not a delta"
    _check_ending(deltas)
    _check_calls(deltas)
    unread = model.reply(messages, tools, {})
    close = getattr(unread, "close", None)
    assert close is None or close() is None, "close() of a reply that nobody read returns something"
    return deltas


def check_tool(
    tool: BaseTool, good: JsonObject, bad: str = "not JSON {", same: Callable[[Any, Any], bool] | None = None
) -> Any:
    """Check a tool against the contract of `BaseTool`, with good and bad arguments, and return its answer.

    Args:
        tool: the tool.
        good: arguments that it takes; it is called with them twice, as a dict and as JSON.
        bad: arguments that it refuses.
        same: a comparison of the two answers; without it they are not compared.

    Raises:
        AssertionError: it breaks the contract; the message says where.
    """
    assert tool.name, "it has no name"
    assert tool.description, "it has no description"
    function = json.loads(json.dumps(tool.function))
    assert isinstance(tool.parameters, list) or is_tool_schema(function), "its parameters are not an object schema"
    answer = tool.call(good, messages=[], lang="en")  # agents pass more than a tool may know
    again = tool.call(json.dumps(good))
    for each in (answer, again):
        is_items = isinstance(each, (list, tuple)) and all(isinstance(item, ContentItem) for item in each)
        assert is_items or _is_json(each), f"an answer of type {type(each).__name__} cannot be told to a model"
    assert same is None or same(answer, again), "the same arguments as a dict and as JSON get different answers"
    assert _refusal(tool, bad), "its refusal says nothing"
    return answer


def _refusal(tool: BaseTool, bad: str) -> str:
    try:
        tool.call(bad)
    except (ToolServiceError, ValueError) as exc:
        return str(exc)
    raise AssertionError("it takes arguments that it should refuse")


def _check_ending(deltas: list[Delta]) -> None:
    finishes = [delta for delta in deltas if isinstance(delta, Finish)]
    assert len(finishes) == 1, f"there are {len(finishes)} Finish instead of one"
    assert sum(isinstance(delta, Usage) for delta in deltas) <= 1, "there is more than one Usage"
    after = deltas[deltas.index(finishes[0]) + 1 :]
    assert all(isinstance(delta, Usage) for delta in after), "something other than Usage comes after Finish"


def _check_calls(deltas: list[Delta]) -> None:
    begun: dict[int, CallStarted] = {}
    written: dict[int, str] = {}
    complete: set[int] = set()
    for delta in deltas:
        match delta:
            case CallStarted(index, id_, name):
                assert index not in begun, f"call {index} begins twice"
                assert id_, f"call {index} has no id"
                assert name, f"call {index} has no name"
                begun[index], written[index] = delta, ""
            case ArgumentsDelta(index, text):
                assert index in begun, f"arguments of call {index} come before it begins"
                assert index not in complete, f"arguments of call {index} come after it is complete"
                written[index] += text
            case CallComplete(index, id_, name, arguments):
                assert index in begun, f"call {index} is complete before it begins"
                assert (id_, name) == (begun[index].id, begun[index].name), f"call {index} changed its name or id"
                assert arguments == written[index], f"the pieces of call {index} are not its arguments"
                complete.add(index)
    assert complete == set(begun), f"calls {sorted(set(begun) - complete)} are never complete"


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
