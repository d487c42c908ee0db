import base64
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import ModelError
from agent_tools.messages import ASSISTANT, FUNCTION, SERVER_FIELDS, SYSTEM, USER, ContentItem, FunctionCall, Message
from agent_tools.models.wire import wire_messages, wire_tools, with_server_fields


def call(name: str, id_: str | None = None, content: str = "") -> Message:
    return Message(
        ASSISTANT, content, function_call=FunctionCall(name, "{}"), extra={"function_id": id_} if id_ else None
    )


def result(content: Any, id_: str | None = None) -> Message:
    return Message(FUNCTION, content, "f", extra={"function_id": id_} if id_ else None)


def test_plain_messages() -> None:
    assert wire_messages([Message(SYSTEM, "be brief"), Message(USER, "hi", name="ann"), Message(ASSISTANT, "yes")]) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": "yes"},
    ]


def test_calls_of_one_reply_are_one_message_and_each_is_answered_by_its_id() -> None:
    wire = wire_messages([call("a", "1", "let me"), call("b", "2"), result("x", "1"), result("y", "2"), call("c", "3")])
    assert [message["role"] for message in wire] == ["assistant", "tool", "tool", "assistant"]
    assert wire[0]["content"] == "let me"
    assert wire[0]["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ]
    assert wire[1:3] == [
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
    ]
    assert wire[3]["content"] == ""


def test_calls_without_ids_get_some_and_results_follow_in_order() -> None:
    wire = wire_messages([call("a"), call("b"), result("x"), result("y"), call("c"), result("z")])
    ids = [each["id"] for message in wire for each in message.get("tool_calls", ())]
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in wire if message["role"] == "tool"] == ids


def test_a_dict_is_sent_as_it_is() -> None:
    message = {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}], "cache_control": {}}
    assert wire_messages([message]) == [message]


def test_images_are_urls_or_data(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    items = (ContentItem(text="see"), ContentItem(image="https://x/a.png"), ContentItem(image=str(path)))
    (wire,) = wire_messages([Message(USER, items)])
    data = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    assert wire["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
        {"type": "image_url", "image_url": {"url": data}},
    ]


def test_audio_and_video() -> None:
    items = (ContentItem(audio="data:audio/wav;base64,AAAA"), ContentItem(video="https://x/v.mp4"))
    (wire,) = wire_messages([Message(USER, items)])
    assert wire["content"] == [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://x/v.mp4"}},
    ]


def test_an_image_that_is_not_there_is_an_error_without_its_path() -> None:
    with pytest.raises(ModelError) as caught:
        wire_messages([Message(USER, (ContentItem(image="/secret/a.png"),))])
    assert "secret" not in str(caught.value)


def test_files_are_for_tools_and_not_sent() -> None:
    assert wire_messages([Message(USER, (ContentItem(text="hi"), ContentItem(file="a.csv")))])[0]["content"] == "hi"


def test_a_result_is_text_and_names_what_is_not() -> None:
    items = (ContentItem(text="a "), ContentItem(image="http://x/a.png"), ContentItem(image="data:image/png;base64,A"))
    assert wire_messages([call("f", "1"), result(items, "1")])[1]["content"] == "a [image: http://x/a.png][image]"


def test_a_list_of_parameters_becomes_a_schema() -> None:
    parameters = [
        {"name": "code", "type": "string", "description": "d", "required": True},
        {"name": "n", "type": "integer"},
    ]
    (tool,) = wire_tools([{"name": "f", "description": "d", "parameters": parameters}])
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "d"}, "n": {"type": "integer"}},
        "required": ["code"],
    }


@pytest.mark.parametrize(
    "fields",
    [None, 1, {"calls": 1}, {"message": [1]}, {"calls": {"c": 1}}, {"calls": {"c": {"function": 2}}}, {"model": [1]}],
)
@pytest.mark.parametrize(
    "calls", [None, 1, [1], [{"id": ["c"]}], [{"id": "c"}], [{"id": "c", "function": {"name": "f"}}]]
)
def test_malformed_server_fields_are_left_out(fields: Any, calls: Any) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert with_server_fields([{**message, SERVER_FIELDS: fields}], "m") == [message]


def test_server_fields_never_replace_what_is_known() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "a", "tool_calls": [call]}
    more = {"id": "d", "x": 1, "function": {"name": "g", "y": 2}}
    fields = {"message": {"content": "b", "z": 3}, "calls": {"c": more}}
    whole = {**call, "x": 1, "function": {**call["function"], "y": 2}}
    assert with_server_fields([{**message, SERVER_FIELDS: fields}], "m") == [{**message, "z": 3, "tool_calls": [whole]}]


def test_the_texts_of_a_reply_are_joined_once() -> None:
    text = "x" * 10_000
    messages = [Message(ASSISTANT, text, reasoning_content=text) for _ in range(100)]
    tracemalloc.start()
    try:
        (reply,) = wire_messages(messages)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (reply["content"], reply["reasoning_content"]) == ("\n\n".join([text] * 100), text * 100)
    assert peak < 2.5 * 100 * len(text)  # both texts, and none of them half joined
