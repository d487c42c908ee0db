"""Requests of chat completions as requests of the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.messages import SERVER_FIELDS
from agent_tools.models.response_request import response_items, response_options
from agent_tools.models.wire import with_server_fields

FUNCTION = {"type": "function", "function": {"name": "f"}}


def test_all_roles_have_their_items() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "6"}]},
        {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "7"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "Never."},
    ]
    message, reasoning, first, answer, second, old_answer, refused, never = response_items(messages)
    assert message["content"] == [{"type": "input_text", "text": "Be brief."}]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert first == {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    assert answer["output"] == [{"type": "input_text", "text": "6"}]
    assert (second["name"], second["call_id"], old_answer["output"]) == ("old", old_answer["call_id"], "7")
    assert refused["content"] == [{"type": "refusal", "refusal": "No."}]
    assert never["content"] == [{"type": "refusal", "refusal": "Never."}]


@pytest.mark.parametrize(
    ("part", "item"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"type": "input_file", "file_id": "file-1"}),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},) * 2,
        ({"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},) * 2,
    ],
)
def test_parts_are_those_of_items_or_left_as_they_are(part: dict[str, Any], item: dict[str, Any]) -> None:
    (message,) = response_items([{"role": "user", "content": [part]}])
    assert message["content"] == [item]


@pytest.mark.parametrize(
    ("choice", "flat"),
    [
        ("required", "required"),
        (FUNCTION, {"type": "function", "name": "f"}),
        ({"type": "custom", "custom": {"name": "c"}}, {"type": "custom", "name": "c"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_a_choice_of_tools_is_flat(choice: Any, flat: Any) -> None:
    assert response_options({"tool_choice": choice}) == {"tool_choice": flat}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_on_tokens_has_two_names(name: str) -> None:
    assert response_options({name: 55}) == {"max_output_tokens": 55}


def test_encrypted_reasoning_goes_back_before_its_message_and_calls_to_its_model_only() -> None:
    before, between = ({"type": "reasoning", "id": id_, "encrypted_content": "gAAAA"} for id_ in ("rs_1", "rs_2"))
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ("c1", "c2")]
    fields = {
        "message": {"reasoning_items": [before, {"type": "message"}]},
        "calls": {"c2": {"reasoning_items": [between]}},
        "model": "m",
    }
    message = {"role": "assistant", "content": "Hm.", "reasoning_content": "So.", "tool_calls": calls}
    with_fields = {**message, SERVER_FIELDS: fields}
    first, said, called, second, called_again = response_items([with_fields], "m")
    assert (first, second) == (before, between)
    assert [said["type"], called["call_id"], called_again["call_id"]] == ["message", "c1", "c2"]
    assert next(response_items([with_fields], "other"))["content"][0]["text"] == "So."
    assert with_server_fields([with_fields], "m") == [message]


@pytest.mark.parametrize(
    "fields", [7, {"message": 7, "calls": 7}, {"message": {"reasoning_items": 7}, "calls": {"c": 7}}]
)
def test_fields_that_a_client_has_made_up_are_ignored(fields: Any) -> None:
    (item,) = response_items([{"role": "assistant", "content": "Hm.", SERVER_FIELDS: fields}], "m")
    assert item["type"] == "message"
