"""The gateway's answers, held against the `openai` package's types: nothing missing, nothing wrong, nothing more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from openai.types.responses import Response
from pydantic import BaseModel

from tests.gateway.valid import members

_MEMBERS = members()
_MORE = {"error": "error", "response.function_call_arguments.done": "name"}
"""Keys that the newest types do not have: clients look for the first, types of openai 2 need the second."""
_UNTYPED = {"frequency_penalty", "presence_penalty", "store"}
"""Keys of a response that OpenAI sends and Open Responses wants, but no types have."""

_UNTYPED_CODE = "context_length_exceeded"
"""A code of failed responses that OpenAI sends, and clients look for, but no types have."""


def check_event(event: dict[str, Any]) -> BaseModel:
    """An event of a stream."""
    more = _MORE.get(event["type"])
    assert more is None or more in event
    return check(_MEMBERS[event["type"]], {key: value for key, value in event.items() if key != more})


def check_response(body: dict[str, Any]) -> Response:
    checked = check(Response, body)
    assert isinstance(checked, Response)
    return checked


def check(kind: type[BaseModel], body: dict[str, Any]) -> BaseModel:
    model = kind.model_validate(_with_typed_code(body))
    _no_extras(model, kind.__name__)
    return model


def _with_typed_code(body: dict[str, Any]) -> dict[str, Any]:
    if isinstance(response := body.get("response"), dict):
        return {**body, "response": _with_typed_code(response)}
    error = body.get("error")
    if isinstance(error, dict) and error.get("code") == _UNTYPED_CODE and "output" in body:
        return {**body, "error": {**error, "code": "invalid_prompt"}}
    return body


def _no_extras(value: Any, where: str) -> None:
    if isinstance(value, BaseModel):
        more = set(value.model_extra or ())
        if isinstance(value, Response):
            assert all(hasattr(value, name) for name in _UNTYPED)
            more -= _UNTYPED
        assert not more, f"{where}: {sorted(more)} are not in the schema"
        for name in value.model_fields_set:
            _no_extras(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _no_extras(each, f"{where}[{index}]")


def check_stream(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All events of a stream: each valid, numbered without gaps, items opened before and closed after their content."""
    events = list(events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    open_items: dict[int, str] = {}
    for event in events:
        check_event(event)
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(open_items)
            open_items[event["output_index"]] = event["item"]["id"]
        elif "item_id" in event:
            assert open_items[event["output_index"]] == event["item_id"]
        elif kind == "response.output_item.done":
            assert open_items[event["output_index"]] == event["item"]["id"]
    final = events[-1]["response"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(item["id"] for item in done) == sorted(item["id"] for item in final["output"])
    assert all(item in done for item in final["output"])
    return events
