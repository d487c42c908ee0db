"""The model on a real client, against a scripted server."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agent_tools.errors import ModelError
from agent_tools.limits import MIB
from agent_tools.messages import USER, Message
from agent_tools.models import OpenAIModel
from agent_tools.models.base import CallComplete, Delta, Finish, ReasoningDelta, TextDelta, Usage
from agent_tools.models.server_errors import failure_name, words_of
from agent_tools.settings import Endpoint
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from agent_tools.testing.replies import Script
from tests.recorder import Answer, Recorder
from tests.waiting import until

HI = [Message(USER, "hi")]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
New = Callable[..., tuple[OpenAIModel, ScriptedServer]]


@pytest.fixture
def new() -> Iterator[New]:
    """Makes a model that follows a script, and the server it is on."""
    with ExitStack() as stack:

        def make(script: Script, **generate_cfg: Any) -> tuple[OpenAIModel, ScriptedServer]:
            server = stack.enter_context(ScriptedServer({"m": script}, api_key="the-key"))
            model = OpenAIModel("m", server.endpoint, generate_cfg)
            stack.callback(model.close)
            return model, server

        yield make


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def test_a_reply_comes_in_pieces_with_usage_and_reason(new: New) -> None:
    model, _ = new(ScriptedReply(text="Hello!", reasoning="hm", piece=3, usage=Usage(7, 3, 2, 1)))
    assert list(model.reply(HI)) == [
        ReasoningDelta("hm"),
        TextDelta("Hel"),
        TextDelta("lo!"),
        Usage(7, 3, 2, 1),
        Finish("stop"),
    ]


def test_calls_come_whole_and_in_pieces(new: New) -> None:
    calls = [ScriptedCall("f", {"code": "print('é😀')"}, "1"), ScriptedCall("g", "{}", "2")]
    model, server = new(ScriptedReply(calls=calls, piece=1))
    deltas = list(model.reply(HI, [FUNCTION], {"tool_choice": "required"}))
    assert [delta for delta in deltas if isinstance(delta, CallComplete)] == [
        CallComplete(0, "1", "f", calls[0].text),
        CallComplete(1, "2", "g", "{}"),
    ]
    assert deltas[-1] == Finish("tool_calls")
    assert server.requests[0]["tools"] == [{"type": "function", "function": FUNCTION}]
    assert server.requests[0]["tool_choice"] == "required"


def test_what_is_sent(new: New) -> None:
    model, server = new(["a"], temperature=0, top_k=5, stop=["Observation:"], max_input_tokens=9, seed=None)
    of_tools = {"tool_choice": "auto", "parallel_tool_calls": False}
    list(model.reply(HI, (), {"temperature": 1, "extra_body": {"x": 1}, **of_tools}))
    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 1,
            "stop": ["Observation:"],
            "top_k": 5,
            "x": 1,
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer the-key"


def test_the_clients_options_are_the_models_and_never_one_replys(new: New) -> None:
    model, server = new(["a"], extra_headers={"X-Of-The-Model": "1"})
    options = {"extra_headers": {"X-Of-The-Reply": "1", "Authorization": "Bearer other"}, "extra_query": {"a": "b"}}
    list(model.reply(HI, (), options))
    assert server.headers[0]["x-of-the-model"] == "1"
    assert server.headers[0]["authorization"] == "Bearer the-key"
    assert "x-of-the-reply" not in server.headers[0]
    assert server.requests[0]["extra_query"] == {"a": "b"}


def test_a_server_without_usage(new: New) -> None:
    model, _ = new(ScriptedReply(text="a", usage=None))
    assert list(model.reply(HI)) == [TextDelta("a"), Finish("stop")]


@pytest.mark.parametrize(
    ("status", "is_retryable"), [(400, False), (401, False), (404, False), (429, True), (503, True)]
)
def test_an_error_keeps_its_status_and_tells_nothing_of_the_request(new: New, status: int, is_retryable: bool) -> None:
    model, _ = new(ScriptedReply(status=status, error="you said CANARY with the-key"), max_retries=0)
    with pytest.raises(ModelError) as caught:
        list(model.reply([Message(USER, "CANARY")]))
    assert (caught.value.status, caught.value.is_retryable) == (status, is_retryable)
    assert str(status) in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert "the-key" not in str(caught.value)
    assert "CANARY" in caught.value.detail


def test_a_request_that_cannot_be_written_is_an_error(new: New) -> None:
    model, server = new(["never"])
    with pytest.raises(ModelError, match="could not be made"):
        list(model.reply([Message(USER, "half an emoji: \ud83d")]))
    assert server.requests == []


def test_it_is_asked_again_before_the_first_byte(new: New) -> None:
    busy = ScriptedReply(status=503, headers={"retry-after-ms": "1"})
    model, server = new([busy, busy, ScriptedReply(text="a")])
    assert text(list(model.reply(HI))) == "a"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply(text="abcdef", piece=1, cut_after=4),
        ScriptedReply(text="abcdef", piece=1, error="CANARY"),
        ScriptedReply(chunks=[{"choices": [{"index": 0, "delta": {"content": "abc"}}]}, {"choices": 3}]),
    ],
    ids=["cut", "error in the stream", "no completion"],
)
def test_a_broken_answer_is_an_error_and_not_asked_again(new: New, reply: ScriptedReply) -> None:
    model, server = new([reply, "again"])
    seen: list[Delta] = []
    with pytest.raises(ModelError) as caught:
        seen.extend(model.reply(HI))  # what came before the error stays in it
    assert text(seen).startswith("abc")
    assert "CANARY" not in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Answer(b"data: " + b"a" * 17 * MIB, "text/event-stream"), "16,777,216 bytes in one piece"),
        (lambda: Answer((b"data: " + b"a" * MIB + b"\n") * 17, "text/event-stream"), "16,777,216 bytes in one piece"),
        (lambda: Answer((b": " + b"a" * MIB + b"\n\n") * 65, "text/event-stream"), "67,108,864 bytes"),
        (lambda: Answer(b"a" * 17 * MIB, "text/plain", 400), "16,777,216 bytes in one piece"),
        (
            lambda: Answer(gzip.compress(bytes(17 * MIB)), "text/event-stream", headers={"Content-Encoding": "gzip"}),
            "16,777,216 bytes in one piece",
        ),
    ],
    ids=["a line without an end", "an event without an end", "comments without an end", "a large error", "compressed"],
)
def test_bytes_are_counted_as_they_arrive(make: Callable[[], Answer], words: str) -> None:
    said = make()
    with Recorder(lambda seen: said) as server:
        model = OpenAIModel("m", Endpoint(server.base_url, "k"), {"max_retries": 0})
        with pytest.raises(ModelError, match=words):
            list(model.reply(HI))
        model.close()


def test_an_answer_and_its_request_are_freed_with_the_last_reference() -> None:
    with Recorder(lambda seen: Answer()) as server:
        model = OpenAIModel("m", Endpoint(server.base_url, "k"))
        gc.disable()
        try:
            answer = model.posted("/chat/completions", {})
            assert b"".join(answer.iter_bytes()) == b"{}"
            kept = weakref.ref(answer.request)
            del answer
            assert kept() is None
        finally:
            gc.enable()
            model.close()


SAID = {"choices": [{"index": 0, "delta": {"content": "abc"}}]}


def test_a_stream_that_ends_without_a_reason_or_a_mark_broke_off() -> None:
    unmarked = f"data: {json.dumps(SAID)}\n\n".encode()
    for end, deltas in ((b"", None), (b"data: [done]\n\n", [TextDelta("abc"), Finish("stop")])):
        with Recorder(lambda seen, end=end: Answer(unmarked + end, "text/event-stream")) as server:
            model = OpenAIModel("m", Endpoint(server.base_url, "k"), {"max_retries": 0})
            if deltas:
                assert list(model.reply(HI)) == deltas
            else:
                with pytest.raises(ModelError, match="in the middle"):
                    list(model.reply(HI))
            model.close()


@pytest.mark.parametrize(
    ("body", "words", "detail"),
    [
        ({"error": {"message": "CANARY", "code": 500}}, "with an error", "CANARY"),
        ({"error": "CANARY"}, "with an error", "CANARY"),
        ({"choices": 3}, "not a reply", ""),
        ({"choices": [{"message": "a"}]}, "not a reply", ""),
    ],
)
def test_json_in_place_of_a_stream_is_a_completion_or_an_error(body: Any, words: str, detail: str) -> None:
    with Recorder(lambda seen: Answer(json.dumps(body).encode())) as server:
        model = OpenAIModel("m", Endpoint(server.base_url, "k"), {"max_retries": 0})
        with pytest.raises(ModelError, match=words) as caught:
            list(model.reply(HI))
        assert caught.value.detail == detail
        model.close()


@pytest.mark.parametrize(
    ("body", "detail", "code"),
    [
        ({"error": {"message": "No.", "type": "Bad", "code": 400}}, "No.", "Bad"),
        ({"object": "error", "message": "No.", "code": 400}, "No.", None),
        ({"detail": [{"loc": ["body", "a"], "msg": "No."}, {"msg": "Never."}]}, "No.: body.a; Never.", None),
        ({"detail": "No."}, "No.", None),
        ({"error": {"error": {"error": {"error": {"error": {"message": "No."}}}}}}, "", None),
    ],
)
def test_a_servers_own_words_are_found_in_every_shape_of_error(body: Any, detail: str, code: str | None) -> None:
    with Recorder(lambda seen: Answer(json.dumps(body).encode(), status=400)) as server:
        model = OpenAIModel("m", Endpoint(server.base_url, "k"), {"max_retries": 0})
        with pytest.raises(ModelError) as caught:
            list(model.reply(HI))
        assert (caught.value.detail, caught.value.code) == (detail, code)
        model.close()


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."},
        {"message": "Shorter.", "code": "context_length_exceeded"},
        {"message": "request (9 tokens) exceeds the available context size (8 tokens), try increasing it", "code": 400},
        {"message": "Too much.", "type": "exceed_context_size_error", "code": 400},
        {"message": "prompt is too long: 200534 tokens > 200000 maximum", "type": "invalid_request_error"},
        {"message": "input length and `max_tokens` exceed context limit: 1 + 2 > 2", "type": "invalid_request_error"},
        {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."},
        {"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."},
        {"message": "Your input exceeds the context window of this model. Please adjust your input and try again."},
        {"message": "Input is too long for requested model."},
        {"message": "This model's maximum prompt length is 8 but the request contains 9 tokens."},
        {"message": "Your request exceeded model token limit: 8"},
        {"message": "Prompt contains 9 tokens, too large for model with 8 maximum context length"},
    ],
)
def test_a_context_that_is_too_long_has_one_name(error: dict[str, Any]) -> None:
    assert failure_name(words_of({"error": error}), error.get("code"), error.get("type")) == "context_length_exceeded"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Rate limit: the maximum context length of your tokens per minute was exceeded.", "rate_limit_exceeded"),
        ("max_tokens is too large: 5", None),
        ("max_tokens exceeds the output token limit of 8192", None),
        ("The context length must be positive.", None),
        ("The name is too long.", "invalid_request_error"),
        ("x" * 100_000 + "prompt is too long", None),
    ],
)
def test_other_failures_keep_their_names(words: str, name: str | None) -> None:
    assert failure_name(words, name) == name


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = OpenAIModel("m", Endpoint(f"http://user:secret@127.0.0.1:{port}/v1", "k"), {"max_retries": 0})
    with pytest.raises(ModelError, match=f"127.0.0.1:{port}") as caught:
        list(model.reply(HI))
    assert caught.value.is_retryable
    assert "secret" not in str(caught.value)


def test_a_silent_server_is_an_error_after_the_timeout(new: New) -> None:
    model, _ = new(ScriptedReply(text="a", wait_before=threading.Event()), timeout=0.2, max_retries=0)
    with pytest.raises(ModelError, match="in time"):
        list(model.reply(HI))


def test_a_stream_that_falls_silent_is_an_error_after_the_timeout(new: New) -> None:
    model, _ = new(ScriptedReply(text="ba", piece=1, wait_midway=threading.Event()), timeout=0.2)
    reply = model.reply(HI)
    assert next(reply) == TextDelta("b")
    with pytest.raises(ModelError, match="in time"):
        list(reply)


def test_closing_a_reply_hangs_up(new: New) -> None:
    model, server = new(ScriptedReply(text="ba" * 100, piece=1, wait_midway=threading.Event()))
    reply = model.reply(HI)
    assert next(reply) == TextDelta("b")
    reply.close()
    assert server.hung_up.wait(60)
    assert list(reply) == []


def test_closing_from_another_thread_ends_a_wait(new: New) -> None:
    model, server = new(ScriptedReply(text="bcda", piece=1, wait_midway=threading.Event()))
    reply = model.reply(HI)
    assert next(reply) == TextDelta("b")
    closer = threading.Timer(0.05, reply.close)
    closer.start()
    started = time.monotonic()
    list(reply)
    assert time.monotonic() - started < 10
    assert server.hung_up.wait(60)
    closer.join()


def test_closing_before_the_first_byte_ends_the_wait_and_hangs_up_when_it_comes(new: New) -> None:
    first_byte = threading.Event()
    model, server = new(ScriptedReply(text="a" * 1000, piece=1, wait_before=first_byte, wait_midway=threading.Event()))
    reply = model.reply(HI)
    closer = threading.Thread(target=lambda: until(lambda: server.requests) and reply.close())
    closer.start()
    assert list(reply) == []
    closer.join()
    first_byte.set()
    assert server.hung_up.wait(60)


def test_replies_at_the_same_time_do_not_mix(new: New) -> None:
    model, _ = new(lambda request: ScriptedReply(text=request["messages"][0]["content"] * 50, piece=1))
    replies = {name: model.reply([Message(USER, name)]) for name in "abc"}
    assert {name: set(text(list(reply))) for name, reply in replies.items()} == {name: {name} for name in "abc"}


def test_a_missing_client_names_the_extra() -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['openai'] = None\nfrom agent_tools.models import get_chat_model\n"
    code += "list(get_chat_model({'model': 'm', 'base_url': 'http://h/v1'}).reply([]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "[agents]" in done.stderr.splitlines()[-1]


def test_our_logs_hold_nothing_of_it(new: New, caplog: pytest.LogCaptureFixture) -> None:
    model, _ = new([ScriptedReply(text="CANARY"), ScriptedReply(status=400, error="CANARY")])
    with caplog.at_level(logging.DEBUG, "agent_tools"):
        list(model.reply([Message(USER, "CANARY")]))
        with pytest.raises(ModelError):
            list(model.reply([Message(USER, "CANARY")]))
    assert "CANARY" not in "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("agent_t")
    )
