"""What the gateway sends, held against the `openai` package's types: nothing missing, nothing wrong, nothing more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

_MEMBERS = {
    member.model_fields["type"].annotation.__args__[0]: member for member in get_args(get_args(ResponseStreamEvent)[0])
}


def check_event(event: dict[str, Any]) -> BaseModel:
    """An event of a stream; `error` has one key more, which clients look for."""
    given = {key: value for key, value in event.items() if key != "error" or event["type"] != "error"}
    if "response" in given:
        given["response"] = _as_typed(given["response"])
    return check(_MEMBERS[event["type"]], given)


_OPEN_RESPONSES_ONLY = ("frequency_penalty", "presence_penalty", "store")  # which OpenAI sends as well


def check_response(body: dict[str, Any]) -> Response:
    checked = check(Response, _as_typed(body))
    assert isinstance(checked, Response)
    return checked


def _as_typed(body: dict[str, Any]) -> dict[str, Any]:
    assert set(_OPEN_RESPONSES_ONLY) <= body.keys()
    return {name: value for name, value in body.items() if name not in _OPEN_RESPONSES_ONLY}


def check(kind: type[BaseModel], body: dict[str, Any]) -> BaseModel:
    model = kind.model_validate(body)
    _no_extras(model, kind.__name__)
    return model


def _no_extras(value: Any, where: str) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{where}: {sorted(value.model_extra)} are not in the schema"
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
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(item["id"] for item in done) == sorted(item["id"] for item in final["output"])
    assert all(item in done for item in final["output"])
    return events
