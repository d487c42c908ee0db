"""Chat completions: passed on as they are, or with declared functions run here."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from agent_tools.gateway.responses.client_tools import MAX_TOOLS
from agent_tools.models.base import Usage
from agent_tools.models.reply_limits import MAX_CALLS
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import EXECUTE, SQUARES, WEATHER, ask, chunks, run, until
from tests.gateway.conftest import NewGateway
from tests.gateway.strict import check
from tests.written_code import ARGUMENTS, REFUSED, TEXTS, RecordingRuntime, Written, arguments


def test_a_declared_function_is_run_and_the_answer_is_whole(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [run(SQUARES), ScriptedReply(text="It is 385.")]})
    body = ask(gateway, tool_choice="auto").json()
    completion = check(ChatCompletion, body)
    assert completion.choices[0].message.content == "It is 385."  # type: ignore[attr-defined]
    assert completion.choices[0].finish_reason == "stop"  # type: ignore[attr-defined]
    first, second = gateway.upstream.requests
    assert first["tools"] == [EXECUTE]
    assert second["messages"][-1]["role"] == "tool"
    assert "385" in second["messages"][-1]["content"]
    assert second["tools"] == [EXECUTE]


def test_many_rounds_share_one_kernel_and_usage_is_their_sum(new_gateway: NewGateway) -> None:
    gateway = new_gateway(
        {
            "m": [
                run("x = 2", text="First I set x.", usage=Usage(10, 1)),
                run("print(x ** 5)", usage=Usage(20, 2)),
                ScriptedReply(text="32.", usage=Usage(30, 3)),
            ]
        }
    )
    body = ask(gateway).json()
    assert body["choices"][0]["message"]["content"] == "First I set x.\n\n32."
    assert "32" in gateway.upstream.requests[2]["messages"][-1]["content"]
    assert {key: body["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        "prompt_tokens": 60,
        "completion_tokens": 6,
        "total_tokens": 66,
    }
    until(lambda: list(gateway.services.containers.running().values()) == [False])


@pytest.mark.parametrize("with_usage", [True, False])
def test_a_stream_adds_up_to_the_same(new_gateway: NewGateway, with_usage: bool) -> None:
    gateway = new_gateway({"m": [run("1", usage=Usage(1, 1)), ScriptedReply(text="One, it is.", piece=4)]})
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    found = chunks(ask(gateway, stream=True, **options))
    for chunk in found:
        check(ChatCompletionChunk, chunk)
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "One, it is."
    assert [c["finish_reason"] for chunk in found for c in chunk["choices"] if c["finish_reason"]] == ["stop"]
    assert [chunk["usage"]["total_tokens"] for chunk in found if chunk.get("usage")] == ([17] if with_usage else [])


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ('{"name": "execute_python", "arguments": {"code": "print(6*7)"}}', True),
        ('{"name": "execute_python", "parameters": {"code": "print(6*7)"}}', True),
        ('{"name": "execute_python", "arguments": "{\\"code\\": \\"print(6*7)\\"}"}', True),
        ('{"function": {"name": "execute_python", "parameters": {"code": "print(6*7)"}}}', True),
        ('[{"name": "execute_python", "arguments": {"code": "print(6*7)"}}]', True),
        ('```json\n{"name": "execute_python", "arguments": {"code": "print(6*7)"}}\n```', True),
        ('<tool_call>\n{"name": "execute_python", "arguments": {"code": "print(6*7)"}}\n</tool_call>', True),
        ('<|python_tag|>{"name": "execute_python", "parameters": {"code": "print(6*7)"}}', True),
        ('{"name": "Alice"}', False),
        ('{"name": "other", "arguments": {"code": "print(6*7)"}}', False),
        ('Sure: {"name": "execute_python", "arguments": {"code": "print(6*7)"}} it is.', False),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_written_as_text(new_gateway: NewGateway, text: str, is_call: bool, is_streamed: bool) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text=text, piece=7), "It is 42."]})
    answer = ask(gateway, stream=is_streamed)
    if is_streamed:
        said = "".join(c["delta"].get("content", "") for chunk in chunks(answer) for c in chunk["choices"])
    else:
        said = answer.json()["choices"][0]["message"]["content"]
    assert said == ("It is 42." if is_call else text)
    if is_call:
        assert "42" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_a_function_that_was_not_declared_is_only_text(new_gateway: NewGateway) -> None:
    text = '{"name": "execute_python", "arguments": {"code": "print(1)"}}'
    gateway = new_gateway({"m": [text, text]})
    assert ask(gateway, tools=[]).json()["choices"][0]["message"]["content"] == text
    assert ask(gateway, tools=[WEATHER]).json()["choices"][0]["message"]["content"] == text


def test_a_function_of_the_client_is_handed_back_after_the_code(new_gateway: NewGateway) -> None:
    both = [ScriptedCall("execute_python", {"code": "1"}, "a"), ScriptedCall("weather", {"city": "Ulm"}, "b")]
    gateway = new_gateway({"m": lambda _: ScriptedReply(calls=both)})
    body = ask(gateway, tools=[EXECUTE, WEATHER]).json()
    check(ChatCompletion, body)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [(call["id"], call["function"]["name"]) for call in choice["message"]["tool_calls"]] == [("b", "weather")]
    found = chunks(ask(gateway, tools=[EXECUTE, WEATHER], stream=True))
    assert [call["id"] for c in found for call in c["choices"][0]["delta"].get("tool_calls", [])] == ["b"]


@pytest.mark.parametrize("arguments", ['{"code": ', "{}", '{"code": "raise ValueError(7)"}', '{"code": "exit()"}'])
def test_whatever_goes_wrong_is_told_to_the_model(new_gateway: NewGateway, arguments: str) -> None:
    reply = ScriptedReply(calls=[ScriptedCall("execute_python", arguments)])
    gateway = new_gateway({"m": [reply, "Sorry."]})
    assert ask(gateway).json()["choices"][0]["message"]["content"] == "Sorry."
    assert gateway.upstream.requests[1]["messages"][-1]["role"] == "tool"


def test_everything_else_is_passed_on_byte_by_byte(new_gateway: NewGateway) -> None:
    gateway = new_gateway(
        {"m": lambda _: ScriptedReply(text="Hello.", piece=2, headers={"x-ratelimit-limit-tokens": "1"})}
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "of_tomorrow": 1}
    for extra in ({}, {"stream": True, "stream_options": {"include_usage": True}}, {"tools": [WEATHER]}):
        asked = json.dumps({**body, **extra}).encode()
        ours = httpx.post(f"{gateway.url}/v1/chat/completions", content=asked)
        theirs = httpx.post(f"{gateway.upstream.base_url}/chat/completions", content=asked)
        assert ours.content == theirs.content
        assert ours.headers["content-type"] == theirs.headers["content-type"]
        assert ours.headers["x-ratelimit-limit-tokens"] == "1"
    assert httpx.get(f"{gateway.url}/v1/models").content == httpx.get(f"{gateway.upstream.base_url}/models").content


def test_the_upstreams_failure_is_the_answers(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(status=400, error="too long"), "cut": [run("1", cut_after=2)]})
    assert ask(gateway).status_code == 400
    assert ask(gateway, stream=True).status_code == 400
    with pytest.raises(openai.APIError):
        list(
            gateway.client().chat.completions.create(
                model="cut", messages=[{"role": "user", "content": "Go."}], tools=[EXECUTE], stream=True
            )
        )


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_model_that_never_stops_calling_is_stopped(new_gateway: NewGateway, is_streamed: bool) -> None:
    gateway = new_gateway({"m": lambda _: run("1")}, max_rounds=2)
    answer = ask(gateway, stream=is_streamed)
    (choice,) = chunks(answer)[-1]["choices"] if is_streamed else answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert [request.get("tool_choice") for request in gateway.upstream.requests] == [None, None, "none"]


@pytest.mark.parametrize("tool", [{"type": "custom", "custom": {"name": "mine"}}, {"type": "web_search"}, {}, "mine"])
def test_tools_that_are_not_here_are_refused_or_left_out(new_gateway: NewGateway, tool: object) -> None:
    tools = [EXECUTE, tool]
    refused = ask(new_gateway({"m": ["Ok."]}), tools=tools)
    assert refused.status_code == 400
    assert "are not supported here: use" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "tools[1].type"
    gateway = new_gateway({"m": ["Ok."]}, unknown_tools="ignore")
    assert ask(gateway, tools=tools).status_code == 200
    assert gateway.upstream.requests[0]["tools"] == [EXECUTE]


def test_only_one_choice_can_be_made(new_gateway: NewGateway) -> None:
    assert ask(new_gateway({}), n=2).json()["error"]["param"] == "n"


def test_code_is_read_as_everywhere(new_gateway: NewGateway) -> None:
    table = [*ARGUMENTS, *(Written(arguments(each.text), each.code, each.note) for each in TEXTS)]
    runtime = RecordingRuntime()
    for start in range(0, len(table), MAX_CALLS):
        part = table[start : start + MAX_CALLS]
        calls = [ScriptedCall("execute_python", written.text) for written in part]
        runtime.ran.clear()
        gateway = new_gateway({"m": [ScriptedReply(calls=calls), "Ok."]}, runtime=runtime)
        assert ask(gateway).status_code == 200
        runs = [written.code for written in part if written.code is not REFUSED]
        assert runtime.ran == [code for code in runs if code.strip()], "a call without code is refused"
        told = [
            message["content"] for message in gateway.upstream.requests[-1]["messages"] if message["role"] == "tool"
        ]
        for written, content in zip(part, told):
            assert written.note in content, written.text
            assert ("failed:" in content) == (written.code is REFUSED), written.text
    runtime.close_all()


def test_a_request_has_a_bounded_number_of_tools(new_gateway: NewGateway) -> None:
    answer = ask(new_gateway({}), tools=[EXECUTE, *[WEATHER] * MAX_TOOLS])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert f"more than {MAX_TOOLS} tools" in answer.json()["error"]["message"]
