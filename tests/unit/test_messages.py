from typing import Any

import pytest

from agent_tools.messages import ASSISTANT, FUNCTION, USER, ContentItem, FunctionCall, Message, messages_of


def test_a_message_reads_like_a_dict() -> None:
    message = Message(USER, "hi", name="ann")
    assert (message["role"], message["content"], message.get("name")) == ("user", "hi", "ann")
    assert message.get("function_call") is None
    assert message.get("nonsense", 3) == 3
    assert "name" in message
    assert "function_call" not in message
    with pytest.raises(KeyError):
        message["nonsense"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"text": "what is this?"}, {"image": "a.png"}, {"file": "b.csv"}]},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}, "name": "bot"},
        {"role": "function", "content": "4", "name": "f", "extra": {"function_id": "call_1"}},
        {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"},
    ],
    ids=["text", "items", "call", "result", "reasoning"],
)
def test_a_dict_comes_back_as_it_went_in(message: dict[str, Any]) -> None:
    assert Message.of(message).to_dict() == message
    assert Message.of(Message.of(message)).model_dump(exclude_none=True) == message


def test_unknown_keys_are_kept_in_extra() -> None:
    message = Message.of({"role": "user", "content": "hi", "cache": True, "extra": {"a": 1}})
    assert message.extra == {"cache": True, "a": 1}


def test_no_content_is_empty_content() -> None:
    assert Message.of({"role": "assistant", "content": None}).content == ""


def test_parts_of_chat_completions_are_items() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://x/a.png"}}]
    items = Message.of({"role": "user", "content": parts}).items
    assert items == (ContentItem(text="see"), ContentItem(image="http://x/a.png"))


def test_a_reply_with_several_calls_becomes_several_messages() -> None:
    calls = [{"id": f"call_{n}", "type": "function", "function": {"name": n, "arguments": "{}"}} for n in "ab"]
    first, second, result = messages_of(
        [
            {"role": "assistant", "content": "so", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_a", "content": "1"},
        ]
    )
    assert (first.content, first.function_call, first.call_id) == ("so", FunctionCall("a", "{}"), "call_a")
    assert (second.content, second.function_call, second.call_id) == ("", FunctionCall("b", "{}"), "call_b")
    assert (result.role, result.text, result.call_id) == ("tool", "1", "call_a")


def test_one_message_is_not_several() -> None:
    calls = [{"id": n, "function": {"name": n, "arguments": "{}"}} for n in "ab"]
    with pytest.raises(ValueError, match="messages_of"):
        Message.of({"role": "assistant", "tool_calls": calls})


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi"},
        {"role": "robot", "content": "hi"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [3]},
        {"role": "user", "content": [{"text": "a", "image": "b"}]},
        {"role": "user", "content": [{"sound": "a"}]},
        "hi",
    ],
    ids=["no role", "unknown role", "number", "number item", "two kinds", "unknown kind", "no dict"],
)
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ValueError):
        Message.of(message)


def test_an_item_is_exactly_one_kind() -> None:
    assert (ContentItem(image="a.png").kind, ContentItem(image="a.png").value) == ("image", "a.png")
    with pytest.raises(ValueError, match="exactly one"):
        ContentItem()


def test_the_text_is_without_images_and_files() -> None:
    assert Message(USER, (ContentItem(text="a"), ContentItem(image="b"), ContentItem(text="c"))).text == "ac"


def test_arguments_that_are_no_text_become_json() -> None:
    assert FunctionCall.of({"name": "f", "arguments": {"a": "é"}}) == FunctionCall("f", '{"a": "é"}')


def test_messages_are_values() -> None:
    assert Message(ASSISTANT, "a") == Message.of({"role": "assistant", "content": "a"})
    assert dict(FunctionCall("f", "{}")) == {"name": "f", "arguments": "{}"}
    assert Message(FUNCTION, "a").call_id is None
