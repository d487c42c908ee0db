"""The doubles that are published: they behave as a model and a server do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import openai
import pytest

from agent_tools.errors import ModelError
from agent_tools.messages import USER, Message
from agent_tools.models.base import CallComplete, Finish, Model, TextDelta, Usage
from agent_tools.testing import RecordedRequest, ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer

HI = [Message(USER, "hi")]
REPLY = ScriptedReply(
    text="so", reasoning="hm", calls=[ScriptedCall("f", {"a": 1}), ScriptedCall("g", "{}", "x")], piece=1
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    models = {
        "hello": ["Hello!", "Bye!"],
        "calls": lambda request: REPLY,
        "busy": ScriptedReply(status=429, error="slow down"),
    }
    with ScriptedServer(models, api_key="k") as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])


def test_a_model_follows_its_script_and_records_what_it_was_asked() -> None:
    model = ScriptedModel(["one", ScriptedReply(text="two", piece=1, usage=None)])
    assert isinstance(model, Model)
    assert list(model.reply(HI, [], {"stop": "x"})) == [TextDelta("one"), Usage(10, 5), Finish("stop")]
    assert list(model.reply(HI)) == [TextDelta("t"), TextDelta("w"), TextDelta("o"), Finish("stop")]
    assert model.asked[0] == RecordedRequest([{"role": "user", "content": "hi"}], [], {"stop": "x"})
    with pytest.raises(ModelError, match="500"):
        list(model.reply(HI))


def test_a_model_calls() -> None:
    complete = [delta for delta in ScriptedModel(REPLY).reply(HI) if isinstance(delta, CallComplete)]
    assert complete == [CallComplete(0, "call_0", "f", '{"a": 1}'), CallComplete(1, "x", "g", "{}")]


def test_a_model_breaks_off_and_counts_replies_that_were_closed() -> None:
    model = ScriptedModel([ScriptedReply(text="abc", piece=1, cut_after=1), ScriptedReply(text="abc", piece=1)])
    broken = model.reply(HI)
    assert next(broken) == TextDelta("a")
    with pytest.raises(ModelError):
        next(broken)
    closed = model.reply(HI)
    next(closed)
    closed.close()  # type: ignore[attr-defined]
    assert model.closed == 1


def test_a_server_answers_whole(client: openai.OpenAI, server: ScriptedServer) -> None:
    assert [ask(client, "hello").choices[0].message.content for _ in range(2)] == ["Hello!", "Bye!"]
    message = ask(client, "calls").choices[0].message
    assert [(call.id, call.function.name) for call in message.tool_calls or ()] == [("call_0", "f"), ("x", "g")]
    assert server.requests[0] == {"model": "hello", "messages": [{"role": "user", "content": "hi"}]}


def test_a_server_answers_in_a_stream_with_usage_only_on_request(client: openai.OpenAI) -> None:
    for wanted in (True, False):
        chunks = list(
            client.chat.completions.create(
                model="calls", messages=[], stream=True, stream_options={"include_usage": wanted}
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "so"
        assert [bool(chunk.usage) for chunk in chunks].count(True) == wanted


def test_a_server_fails_as_scripted(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError, match="slow down"):
        ask(client, "busy")
    with pytest.raises(openai.NotFoundError):
        ask(client, "nobody")
    with pytest.raises(openai.AuthenticationError):
        ask(client.with_options(api_key="wrong"), "hello")


def test_a_server_lists_its_models(client: openai.OpenAI) -> None:
    assert sorted(model.id for model in client.models.list()) == ["busy", "calls", "hello"]


def test_a_server_waits_where_it_is_told() -> None:
    gate = threading.Event()
    with ScriptedServer({"m": ScriptedReply(text="abcd", piece=1, wait_midway=gate)}) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="k") as client:
            stream = client.chat.completions.create(model="m", messages=[], stream=True)
            next(stream)
            gate.set()
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "abcd"
        assert not server.hung_up.is_set()
