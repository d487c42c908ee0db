"""Tools for servers that have no tool calling: the prompt offers them, and calls and results are text. Pure.

The model is asked to write a call as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of the
Hermes templates, which many open models know from their training. Calls in a reply's text are read where all calls in
text are: agents/turn/round.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from agent_tools.json_parts import has_more_parts
from agent_tools.messages import ASSISTANT, DEVELOPER, SYSTEM, TOOL, USER
from agent_tools.models.base import Json, JsonObject

MAX_PARTS = 200_000  # commas and opening brackets outside texts in arguments that are parsed; others are shown as text
RESULT = "<tool_response>"
"""What a message with the results of calls begins with."""
_SHOWN = ("name", "description", "parameters")
_OFFER = """You can call functions. Here is one JSON definition per line:
<tools>
{tools}
</tools>

To call a function, end your reply with a block of this form for each call, and write nothing after it:
<tool_call>
{{"name": "the function's name", "arguments": {{"parameter": "value"}}}}
</tool_call>
The arguments are JSON: write a line break in a text as \\n and a quotation mark as \\". The result of each call is in \
the next message, between <tool_response> and </tool_response>; never write that block yourself. If no call is needed, \
just answer.{forced}"""


def prompted(request: Json) -> JsonObject:
    """Return a request without `tools`, which offers the same functions in its first message."""
    rest = {key: value for key, value in request.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")}
    messages = [*_as_text(request["messages"])]
    tools, choice = request.get("tools") or (), request.get("tool_choice")
    if tools and choice != "none":
        messages = _led(messages, _offer(tools, choice))
    return {**rest, "messages": messages}


def _offer(tools: Iterable[Json], choice: Any) -> str:
    functions = [tool["function"] for tool in tools]
    lines = [json.dumps({key: each[key] for key in _SHOWN if key in each}, ensure_ascii=False) for each in functions]
    forced = "" if choice in (None, "auto") else "\nCall a function now, before you answer."
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        forced = f"\nCall the function {choice['function'].get('name')} now, before you answer."
    return _OFFER.format(tools="\n".join(lines), forced=forced)


def _led(messages: Sequence[JsonObject], offer: str) -> list[JsonObject]:
    first = messages[0] if messages else {}
    if first.get("role") not in (SYSTEM, DEVELOPER):
        return [{"role": SYSTEM, "content": offer}, *messages]
    return [{**first, "content": f"{_text(first.get('content'))}\n\n{offer}"}, *messages[1:]]


def _as_text(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield messages with calls and results as text; the results of one message's calls are one message."""
    for are_results, group in itertools.groupby(messages, lambda each: each.get("role") == TOOL):
        if are_results:
            results = (f"{RESULT}\n{_text(each.get('content'))}\n</tool_response>" for each in group)
            yield {"role": USER, "content": "\n".join(results)}
            continue
        for each in group:
            yield _with_calls(each) if each.get("role") == ASSISTANT and each.get("tool_calls") else each


def _with_calls(message: JsonObject) -> JsonObject:
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    said = [_text(message.get("content"))] if message.get("content") else []
    return {**rest, "content": "\n".join([*said, *(_call(call) for call in message["tool_calls"])])}


def _call(call: Any) -> str:
    function = call["function"] if isinstance(call, dict) and isinstance(call.get("function"), dict) else {}
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str) and not has_more_parts(
        arguments.encode("utf-8", "surrogatepass"), MAX_PARTS, beside_texts=True
    ):
        with suppress(ValueError, RecursionError):  # else unchanged
            arguments = json.loads(arguments)
    written = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
