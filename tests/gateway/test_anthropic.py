"""Anthropic's Messages API before an upstream that has only chat completions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from agent_tools.bodies.json_body import parsed
from tests.gateway.asking import KEYS, until
from tests.gateway.conftest import New
from tests.recorder import CHAT, Answer, HeldRefusal, Recorder, Seen, connect, events

BODY: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi."}]}
TOOL = {"name": "read", "description": "Reads.", "input_schema": {"type": "object", "properties": {"path": {}}}}
HEADERS = {"x-api-key": KEYS[0], "anthropic-version": "2023-06-01"}
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 7}}
Chunk = Mapping[str, Any]


def chunk(finish: str | None = None, **delta: Any) -> Chunk:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def only_chat(*chunks: Chunk) -> Callable[[Seen], Answer]:
    """An upstream that knows no other path than chat completions."""
    return lambda seen: events(*chunks) if seen.target == "/v1/chat/completions" else Answer(status=404)


def post(url: str, body: Mapping[str, Any] = BODY, path: str = "messages") -> httpx.Response:
    return httpx.post(f"{url}/v1/{path}", json=body, headers=HEADERS)


def sent(upstream: Recorder) -> Any:
    return upstream.seen[-1].json


def test_an_answer_is_translated_with_its_usage(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(chunk(content="Hel"), chunk(content="lo."), {**chunk("stop"), "usage": USAGE})
    answer = post(gateway.url).json()
    assert answer["content"] == [{"type": "text", "text": "Hello."}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "m")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    counts = {name: answer["usage"][f"{name}_tokens"] for name in ("input", "output", "cache_read_input")}
    assert counts == {"input": 3, "output": 4, "cache_read_input": 7}
    assert upstream.seen[-1].headers["authorization"] == "Bearer operators-key"


def test_a_stream_has_anthropics_events_and_nothing_else(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(
        chunk(reasoning_content="Hm."), chunk(content="Look."), chunk(tool_calls=[CALL]), chunk("tool_calls")
    )
    body = {**BODY, "stream": True, "tools": [TOOL], "thinking": {"type": "adaptive"}}
    answer = post(gateway.url, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in found]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in found] == ["message_start", *block * 3, "message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for event in found if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Hm."}
    assert (deltas[2]["type"], json.loads(deltas[2]["partial_json"])) == ("input_json_delta", {"path": "a"})
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_reasoning_is_sent_only_where_thinking_is_on(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(chunk(reasoning_content="Hm."), *CHAT)
    assert [block["type"] for block in post(gateway.url).json()["content"]] == ["text"]
    off = {**BODY, "thinking": {"type": "disabled"}}
    assert [block["type"] for block in post(gateway.url, off).json()["content"]] == ["text"]


def test_a_conversation_with_tools_becomes_one_of_chat_completions(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(*CHAT)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    use = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "ä"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "One."}, picture]}
    failed = {"type": "tool_result", "tool_use_id": "c2", "content": "No file.", "is_error": True}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Ok."}, use, {**use, "id": "c2"}]},
        {"role": "user", "content": [result, failed, {"type": "text", "text": "Go on."}]},
    ]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    more = {"tool_choice": choice, "stop_sequences": ["END"], "temperature": 0.5, "system": system, "tools": [TOOL]}
    assert post(gateway.url, {**BODY, **more, "messages": messages}).status_code == 200
    body, url = sent(upstream), {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    system_, user, answer, one, two, last = body["messages"]
    assert (system_["content"], user["content"]) == ("Be brief.", [{"type": "text", "text": "See"}, url])
    assert (answer["content"], answer["reasoning_content"]) == ("Ok.", "Hm.")
    assert [call["id"] for call in answer["tool_calls"]] == ["c1", "c2"]
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"path": "ä"}
    assert one == {"role": "tool", "tool_call_id": "c1", "content": "One.\n[image: see the next message]"}
    assert two == {"role": "tool", "tool_call_id": "c2", "content": "Error: No file."}
    assert last["content"] == [url, {"type": "text", "text": "Go on."}]
    function = {"name": "read", "description": "Reads.", "parameters": TOOL["input_schema"]}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert (body["tool_choice"], body["parallel_tool_calls"], body["stop"]) == ("required", False, ["END"])
    assert (body["max_tokens"], body["temperature"]) == (99, 0.5)


@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")]
)
def test_the_stop_reason_is_anthropics(new: New, finish: str, reason: str) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(chunk(content="Hi"), chunk(finish))
    assert post(gateway.url).json()["stop_reason"] == reason


def test_a_failure_of_the_upstream_has_anthropics_shape(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    words = {"error": {"message": "The model `m` does not exist."}}
    for status, kind in ((404, "not_found_error"), (400, "invalid_request_error")):
        upstream.answer = lambda seen, status=status: Answer(
            json.dumps(words).encode(), status=status if "chat" in seen.target else 404
        )
        for stream in (False, True):
            answer = post(gateway.url, {**BODY, "stream": stream})
            assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
                status,
                "error",
                kind,
            )
            assert "does not exist" in answer.json()["error"]["message"]
    upstream.answer = only_chat(chunk(content="Hi"), {"error": {"message": "Out of memory."}})
    last = post(gateway.url, {**BODY, "stream": True}).text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\n")
    assert "Out of memory." in last


def test_an_upstream_without_the_path_is_not_asked_for_it_again_at_once(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(*CHAT)
    for _ in range(3):
        assert post(gateway.url).status_code == 200
    assert [seen.target.rpartition("/")[2] for seen in upstream.seen] == ["messages", *["completions"] * 3]


def test_what_an_upstream_with_the_path_does_not_find_is_no_missing_path(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    words = {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}
    upstream.answer = lambda seen: (
        events(*CHAT) if "chat" in seen.target else Answer(json.dumps(words).encode(), status=404)
    )
    for path in ("messages", "messages/count_tokens", "messages"):
        answer = post(gateway.url, path=path)
        assert (answer.status_code, answer.json()) == (404, words)
    assert [seen.target for seen in upstream.seen] == [
        f"/v1/{path}" for path in ("messages", "messages/count_tokens", "messages")
    ]


@pytest.mark.parametrize("arguments", ['{"path": NaN}', '{"path": 1e999}', "[" * 1_000, '{"path": "a'])
def test_arguments_that_are_no_json_are_text(new: New, arguments: str) -> None:
    gateway, upstream = new(api_keys=KEYS)
    call = {**CALL, "function": {"name": "read", "arguments": arguments}}
    upstream.answer = only_chat(chunk(tool_calls=[call]), chunk("tool_calls"))
    text = post(gateway.url, {**BODY, "tools": [TOOL]}).text
    assert parsed(text.encode())["content"][0]["input"] == {"arguments": arguments}


def test_tokens_are_counted_for_an_upstream_that_cannot(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat()
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "tools": [TOOL], "system": "s"}
    count = post(gateway.url, body, "messages/count_tokens").json()["input_tokens"]
    upstream.answer = lambda seen: Answer(b'{"count": 7}', status=200 if "tokenize" in seen.target else 404)
    assert 100 <= count <= 200
    assert post(gateway.url, body, "messages/count_tokens").json() == {"input_tokens": 7}


USER = {"role": "user"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [7]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{**USER, "content": 7}]}, "messages[0].content"),
        ({"messages": [{**USER, "content": [{"type": "video"}]}]}, "'video'"),
        ({"messages": [{**USER, "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{**USER, "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "'server_tool_use'"),
        ({"messages": [{**USER, "content": [{"type": "image", "source": {"type": "file"}}]}]}, "source.type"),
        ({"tools": [{"type": "code_execution_20250825", "name": "c"}]}, "code_execution_20250825"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "unknown_tools=ignore"),
        ({"tools": [{"type": [], "name": "w"}]}, "tools"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"container": "c"}, "container"),
        ({"system": [{"type": "video"}]}, "'video'"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_its_field(new: New, more: dict[str, Any], words: str) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(*CHAT)
    answer = post(gateway.url, {**BODY, **more})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert words in answer.json()["error"]["message"]
    assert all("chat" not in seen.target for seen in upstream.seen)


def test_other_tools_may_be_ignored_but_not_the_one_that_runs_code(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS, unknown_tools="ignore")
    upstream.answer = only_chat(*CHAT)
    tools = [{"type": "web_search_20250305", "name": "w"}, TOOL]
    assert post(gateway.url, {**BODY, "tools": tools}).status_code == 200
    assert [tool["function"]["name"] for tool in sent(upstream)["tools"]] == ["read"]
    refused = post(gateway.url, {**BODY, "tools": [{"type": "code_execution_20250825", "name": "c"}]})
    assert refused.status_code == 400


def test_broken_and_deep_bodies_are_refused(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = only_chat(*CHAT)
    for content in (b"", b"[]", b"{", b"[" * 100_000, b"\xff", b'{"model": "m", "model"'):
        answer = httpx.post(f"{gateway.url}/v1/messages", content=content, headers=HEADERS)
        assert (answer.status_code, answer.json()["type"]) == (400, "error"), content[:9]


def test_arguments_that_are_no_object_still_make_a_valid_call(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    call = {**CALL, "function": {"name": "read", "arguments": "[1]"}}
    upstream.answer = only_chat(chunk(tool_calls=[call]), chunk("tool_calls"))
    (block,) = post(gateway.url, {**BODY, "tools": [TOOL]}).json()["content"]
    assert (block["type"], block["input"]) == ("tool_use", {"arguments": [1]})


def test_the_work_ends_with_its_client(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS, max_responses=1)
    is_asked, is_free = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        if "chat" in seen.target and not is_asked.is_set():
            is_asked.set()
            is_free.wait()
        return only_chat(*CHAT)(seen)

    upstream.answer = answer
    with connect(gateway.url) as connection:
        body = json.dumps({**BODY, "stream": True}).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: h\r\nx-api-key: {KEYS[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        is_asked.wait()
    while (found := post(gateway.url)).status_code == 429:  # until the only place is free again
        pass
    is_free.set()
    assert found.status_code == 200


def test_a_client_that_leaves_says_nothing_on_what_the_upstream_lacks(new: New) -> None:
    gateway, upstream = new(api_keys=KEYS)
    upstream.answer = held = HeldRefusal()
    with connect(gateway.url) as connection:
        body = json.dumps(BODY).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: h\r\nx-api-key: {KEYS[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        held.is_asked.wait()
    until(lambda: gateway.app.state.jobs.active == 0)
    held.is_free.set()
    assert not gateway.services.upstream.has_no_messages
