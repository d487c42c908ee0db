"""Requests of chat completions as requests of the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.models.openai_responses import response_items, response_options

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
