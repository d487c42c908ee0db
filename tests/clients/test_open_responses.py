"""Plain and function traffic as https://www.openresponses.org wants it: the behaviours its compliance suite looks at.

The schema is that of `openresponses-types`, which is generated from the specification's OpenAPI document. It knows no
code interpreter, for which the `openai` package's types are the measure.
"""

from __future__ import annotations

import json
from typing import Any, Union

import httpx
import openresponses_types as schema
import pytest
from pydantic import TypeAdapter

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway

EVENTS = tuple(
    getattr(schema.types, name)
    for name in dir(schema.types)
    if name.endswith("StreamingEvent") and not name.startswith("_")
)
EVENT: TypeAdapter[Any] = TypeAdapter(Union[EVENTS])
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def ask(gateway: Gateway, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = httpx.post(f"{gateway.url}/v1/responses", json={"model": "m", "input": messages, **more})
    assert answer.status_code == 200, answer.text
    return checked(answer.json())


def checked(body: dict[str, Any]) -> dict[str, Any]:
    schema.ResponseResource.model_validate(body)
    return body


def events_of(gateway: Gateway, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The events of a stream: each fits the schema, is named as it says, and comes in its place."""
    asked = {"model": "m", "input": messages, "stream": True, **more}
    answer = httpx.post(f"{gateway.url}/v1/responses", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, last = answer.text.rstrip("\n").split("\n\n")
    assert last == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        EVENT.validate_python(events[-1])
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    checked(events[-1]["response"])
    return events


def only(body: dict[str, Any]) -> dict[str, Any]:
    """The one item there is, which is complete."""
    (item,) = body["output"]
    assert body["status"] == item["status"] == "completed"
    assert isinstance(item, dict)
    return item


def text(body: dict[str, Any]) -> str:
    item = only(body)
    assert (item["type"], item["role"]) == ("message", "assistant")
    return "".join(part["text"] for part in item["content"])


def test_the_schema_tells_right_from_wrong(new_gateway: NewGateway) -> None:
    """Else the tests below would prove nothing."""
    body = ask(new_gateway({"m": ["Hello there."]}), said("user", "Greet me."))
    for name in ("store", "temperature", "presence_penalty", "service_tier", "truncation", "usage"):
        with pytest.raises(ValueError, match=name):
            checked({key: value for key, value in body.items() if key != name})
    with pytest.raises(ValueError, match="StreamingEvent"):
        EVENT.validate_python({"type": "response.output_text.delta", "delta": "Hello"})
    assert len(EVENTS) == 24


def test_a_text_is_answered(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hello there."]})
    assert text(ask(gateway, said("user", "Greet me."))) == "Hello there."
    assert gateway.upstream.requests[0]["messages"] == [{"role": "user", "content": "Greet me."}]


def test_a_stream_ends_with_the_whole(new_gateway: NewGateway) -> None:
    events = events_of(new_gateway({"m": ScriptedReply("One, two, three.", piece=4)}), said("user", "Count."))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == ["One,", " two", ", th", "ree."]
    assert text(events[-1]["response"]) == "".join(deltas)


def test_a_system_message_reaches_the_model(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Arr."]})
    assert text(ask(gateway, said("system", "You are a pirate."), said("user", "Hello."))) == "Arr."
    assert gateway.upstream.requests[0]["messages"][0] == {"role": "system", "content": "You are a pirate."}


def test_a_function_is_called_and_answered(new_gateway: NewGateway) -> None:
    call = ScriptedReply(calls=[ScriptedCall("get_weather", {"place": "Ulm"})])
    gateway = new_gateway({"m": [call, "Take an umbrella."]})
    choice = {"type": "function", "name": "get_weather"}
    first = ask(gateway, said("user", "How is it in Ulm?"), tools=[WEATHER], tool_choice=choice)
    item = only(first)
    assert (item["type"], item["name"], json.loads(item["arguments"])) == (
        "function_call",
        "get_weather",
        {"place": "Ulm"},
    )
    answer = {"type": "function_call_output", "call_id": item["call_id"], "output": "Rain."}
    assert text(ask(gateway, answer, previous_response_id=first["id"])) == "Take an umbrella."
    asked, told = (request["messages"] for request in gateway.upstream.requests)
    assert asked == told[:1]
    assert told[-1]["content"] == "Rain."
    assert told[-1]["tool_call_id"] == told[-2]["tool_calls"][0]["id"]


def test_the_call_of_a_function_is_streamed(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ScriptedReply(calls=[ScriptedCall("get_weather", {"place": "Ulm"})], piece=6)})
    events = events_of(gateway, said("user", "How is it in Ulm?"), tools=[WEATHER])
    assert list(dict.fromkeys(event["type"] for event in events)) == [
        *("response.created", "response.in_progress", "response.output_item.added"),
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        *("response.output_item.done", "response.completed"),
    ]
    pieces = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert len(pieces) > 1
    assert only(events[-1]["response"])["arguments"] == "".join(pieces) == '{"place": "Ulm"}'


def test_an_image_reaches_the_model(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["A pixel."]})
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}]
    assert text(ask(gateway, said("user", parts))) == "A pixel."
    shown = gateway.upstream.requests[0]["messages"][0]["content"]
    assert shown == [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]


def test_a_file_reaches_the_model(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["A title."]})
    file = {"filename": "page.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjEK"}
    assert text(ask(gateway, said("user", [{"type": "input_file", **file}]))) == "A title."
    assert gateway.upstream.requests[0]["messages"][0]["content"] == [{"type": "file", "file": file}]


def test_a_conversation_is_resent(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Alice."]})
    turns = [said("user", "I am Alice."), said("assistant", "Hello, Alice."), said("user", "Who am I?")]
    assert text(ask(gateway, *turns)) == "Alice."
    sent = gateway.upstream.requests[0]["messages"]
    assert sent == [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def test_a_conversation_is_continued_by_id(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Noted.", "Papaya."]})
    first = ask(gateway, said("user", "The word is papaya."))
    assert text(ask(gateway, said("user", "The word?"), previous_response_id=first["id"])) == "Papaya."
    spoken = [message["content"] for message in gateway.upstream.requests[1]["messages"]]
    assert spoken == ["The word is papaya.", "Noted.", "The word?"]
