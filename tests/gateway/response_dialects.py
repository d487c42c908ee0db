"""Servers that speak the Responses API, each as a function from a request to its answer.

The model behind all of them calls the code interpreter and answers with the result, as in dialects.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.call_forms import written_calls
from tests.gateway.dialects import ARGUMENTS, CODE, Request
from tests.gateway.wire_dialects import FRAMINGS
from tests.recorder import Answer, events

Event = dict[str, Any]
Change = Callable[[list[Event]], list[Event]]
THOUGHT = "I compute it."


def tool(request: Request) -> str:
    return str(request["tools"][0]["name"])


def told(request: Request) -> str:
    """What the model was told of its calls since the user spoke; '' if it has not called yet."""
    last = max(n for n, item in enumerate(request["input"]) if item.get("role") == "user")
    results = [item["output"] for item in request["input"][last:] if item["type"] == "function_call_output"]
    return " and ".join("42" if "42" in str(result) else "?" for result in results)


def call_item(request: Request, status: str = "completed", arguments: str = ARGUMENTS) -> Event:
    name = tool(request)
    return {
        "id": "fc_1",
        "type": "function_call",
        "status": status,
        "call_id": "call_1",
        "name": name,
        "arguments": arguments,
    }


def message_item(text: str, status: str = "completed") -> Event:
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": parts}


def event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", **fields}


def call_events(request: Request) -> list[Event]:
    at = {"item_id": "fc_1", "output_index": 0}
    return [
        event("output_item.added", output_index=0, item=call_item(request, "in_progress", "")),
        event("function_call_arguments.delta", **at, delta=ARGUMENTS[:9]),
        event("function_call_arguments.delta", **at, delta=ARGUMENTS[9:]),
        event("function_call_arguments.done", **at, arguments=ARGUMENTS),
        event("output_item.done", output_index=0, item=call_item(request)),
    ]


def message_events(text: str) -> list[Event]:
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    return [
        event("output_item.added", output_index=0, item=message_item("", "in_progress")),
        event("content_part.added", **at, part=part),
        event("output_text.delta", **at, delta=text[:5]),
        event("output_text.delta", **at, delta=text[5:]),
        event("output_text.done", **at, text=text),
        event("content_part.done", **at, part={**part, "text": text}),
        event("output_item.done", output_index=0, item=message_item(text)),
    ]


def documented(request: Request) -> list[Event]:
    text = f"It is {told(request)}."
    inner = message_events(text) if told(request) else call_events(request)
    item = message_item(text) if told(request) else call_item(request)
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    whole = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "usage": None}
    done = {**whole, "status": "completed", "output": [item], "usage": usage}
    return [
        *(event(kind, response=whole) for kind in ("created", "in_progress")),
        *inner,
        event("completed", response=done),
    ]


def without(*endings: str) -> Change:
    return lambda found: [each for each in found if not each["type"].endswith(endings)]


def each_item(change: Callable[[Event], Any]) -> Change:
    """Change the items of all events but the last."""

    def shape(found: list[Event]) -> list[Event]:
        for each in found[:-1]:
            if "item" in each:
                change(each["item"])
        return found

    return shape


def last(change: Callable[[Event], Any]) -> Change:
    """Change the response of the last event."""

    def shape(found: list[Event]) -> list[Event]:
        change(found[-1]["response"])
        return found

    return shape


def another_id(response: Event) -> None:
    for item in response["output"]:
        item["call_id"] = "chatcmpl-tool-7"


def another_place(response: Event) -> None:
    response["output"].insert(0, message_item(""))
    another_id(response)


def thinking(*kinds: str) -> Change:
    """The same with reasoning before it, in these events."""

    def shape(found: list[Event]) -> list[Event]:
        moved = [{**each, "output_index": 1} if "output_index" in each else each for each in found[2:]]
        item = {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
        added = [event("output_item.added", output_index=0, item=item)]
        for kind in kinds:
            added += [
                event(f"{kind}.delta", output_index=0, item_id="rs_1", delta=piece) for piece in ("I com", "pute it.")
            ]
        return [*found[:2], *added, event("output_item.done", output_index=0, item=item), *moved]

    return shape


def blank_lines_first(found: list[Event]) -> list[Event]:
    """The same behind a message of blank lines alone, as models write before a call."""
    moved = [{**each, "output_index": 1} if "output_index" in each else each for each in found[2:]]
    return [*found[:2], *message_events("\n\n"), *moved] if "call" in str(found[2]) else found


def thought_at_the_end(found: list[Event]) -> list[Event]:
    parts = [{"type": "reasoning_text", "text": THOUGHT}]
    found[-1]["response"]["output"].insert(0, {"id": "rs_1", "type": "reasoning", "summary": [], "content": parts})
    return [*found[:2], found[-1]]


SHAPES: dict[str, Change] = {
    "as documented": lambda found: found,
    "no deltas": without(".delta"),
    "no ends of parts": without("_text.done", "arguments.done", "part.done", "part.added"),
    "no ends of items": without("_text.done", "arguments.done", "part.done", "item.done"),
    "only the ends of items": lambda found: [
        each for each in found if each["type"].endswith(("item.done", "completed"))
    ],
    "only the last event": lambda found: found[-1:],
    "only deltas and an empty end": lambda found: [
        *last(lambda response: response.update(output=[]))(without("_text.done", "part.done", "item.done")(found))
    ],
    "an end without output": last(lambda response: response.pop("output")),
    "an end with output of null": last(lambda response: response.update(output=None)),
    "an end without usage": last(lambda response: response.update(usage=None)),
    "an end without a status": last(lambda response: response.pop("status")),
    "another id for the call at the end": last(another_id),
    "another place for the call at the end": last(another_place),
    "the arguments with the first event": each_item(
        lambda item: item.update(arguments=ARGUMENTS) if item["type"] == "function_call" else None
    ),
    "names of a template": lambda found: json.loads(json.dumps(found).replace('"name": "', '"name": "functions.')),
    "events of nobody": lambda found: [
        one for each in found for one in ({"type": "response.heartbeat"}, {"type": "keepalive"}, each)
    ],
    "fields of nobody": lambda found: [
        {**each, "obfuscation": "x", "sequence_number": n} for n, each in enumerate(found)
    ],
    "blank lines before the call": blank_lines_first,
    "reasoning": thinking("reasoning_text"),
    "a summary of reasoning": thinking("reasoning_summary_text"),
    "reasoning and its summary": thinking("reasoning_text", "reasoning_summary_text"),
    "reasoning only at the end": thought_at_the_end,
}


def streamed(change: Change) -> Callable[[Request], Answer]:
    return lambda request: events(*change(documented(request)))


def framed(change: Callable[[Answer], Answer]) -> Callable[[Request], Answer]:
    return lambda request: change(events(*documented(request)))


def at_once(request: Request) -> Answer:
    """A server that ignores that a stream was asked for."""
    return Answer(json.dumps(documented(request)[-1]["response"]).encode())


def written(form: str) -> Callable[[Request], Answer]:
    """A server without a parser for the calls of its model."""

    def serve(request: Request) -> Answer:
        if told(request):
            return events(*documented(request))
        text = written_calls(tool(request), CODE)[form]
        return events(*message_events(text), event("completed", response={"output": [message_item(text)]}))

    return serve


DIALECTS: dict[str, Callable[[Request], Answer]] = {
    **{name: streamed(change) for name, change in SHAPES.items()},
    **{name: framed(change) for name, change in FRAMINGS.items()},
    "all at once": at_once,
    **{f"calls of {form}": written(form) for form in ("harmony", "Kimi", "Hermes", "Mistral")},
}
