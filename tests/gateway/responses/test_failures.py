"""Responses that fail: by the engine, by the upstream, by a limit."""

from __future__ import annotations

import json
import threading

import httpx
import openai
import pytest

from agent_tools.engines.engine import Engine
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import INCLUDE, SLEEP, ask, code, is_idle, outputs, post, run, stream, until
from tests.gateway.conftest import NewGateway
from tests.gateway.engines import DeadEngine, SilentEngine
from tests.gateway.strict import check_response


@pytest.mark.parametrize("engine", [DeadEngine(), SilentEngine()], ids=["dead", "silent"])
def test_without_an_engine_a_response_fails_at_once_and_says_so(new_gateway: NewGateway, engine: Engine) -> None:
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": lambda _: code("1"), "chat": lambda _: run("1")}, runtime)
    events = stream(gateway, include=INCLUDE)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert (events[-3]["item"]["status"], events[-2]["code"]) == ("failed", "code_interpreter_unavailable")
    for answer in (post(gateway), ask(gateway, model="chat")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "code_interpreter_unavailable")
    assert len(gateway.upstream.requests) == 3
    assert httpx.get(f"{gateway.url}/v1/containers").status_code == 200


def test_an_upstream_that_breaks_off_in_a_call_leaves_it_incomplete(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: code("print(1234567)", piece=3, cut_after=8)})
    events = stream(gateway)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    (item,) = outputs(events[-1]["response"])
    assert item["status"] == "incomplete"
    assert "print(1234567)".startswith(item["code"])
    assert item["code"]


def test_an_upstream_that_is_not_there(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, upstream="http://127.0.0.1:9/v1")
    events = stream(gateway, background=True)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    for answer in (post(gateway), post(gateway, stream=True)):
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")


def test_an_upstream_that_breaks_off_ends_the_stream_properly(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Half of it", piece=2, cut_after=3)})
    events = stream(gateway)
    assert [event["type"] for event in events[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert events[-3]["item"]["status"] == "incomplete"
    check_response(events[-1]["response"])
    with pytest.raises(openai.APIError):
        list(gateway.client().responses.create(model="m", input="Go.", stream=True))
    answer = post(gateway)
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")


def test_a_reply_cut_at_its_limit_is_incomplete(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="Half of", finish_reason="length")]})
    body = stream(gateway, max_output_tokens=2)[-1]["response"]
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert gateway.upstream.requests[0]["max_tokens"] == 2


def test_the_time_one_response_may_take_is_bounded(new_gateway: NewGateway) -> None:
    body = stream(new_gateway({"m": lambda _: code(SLEEP)}, turn_timeout=1.5))[-1]["response"]
    assert body["status"] == "failed"
    assert outputs(body)[0]["status"] in ("completed", "incomplete", "failed")


def test_the_size_of_one_response_is_bounded(new_gateway: NewGateway) -> None:
    events = stream(new_gateway({"m": [ScriptedReply(text="x" * 9_000, piece=100)]}, max_response_bytes=20_000))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_what_the_upstream_refuses_is_told_in_the_apis_shape(new_gateway: NewGateway) -> None:
    for status, expected in ((400, 400), (429, 429), (500, 500)):
        reply = ScriptedReply(status=status, error="said the upstream", headers={"x-should-retry": "false"})
        gateway = new_gateway({"m": lambda _, reply=reply: reply})
        for answer in (post(gateway), post(gateway, stream=True)):
            assert answer.status_code == expected
            assert "said the upstream" in answer.json()["error"]["message"]
        with pytest.raises(openai.APIStatusError, match="said the upstream"):
            gateway.client().responses.create(model="m", input="Go.", stream=True)
        events = stream(gateway, background=True)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert "said the upstream" in events[-1]["response"]["error"]["message"]


def test_a_stream_does_not_wait_long_for_a_refusal(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    refusal = ScriptedReply(status=429, error="said the upstream", wait_before=go_on)
    gateway = new_gateway({"m": lambda _: refusal}, refusal_wait=0.05)
    with gateway.client(max_retries=0).responses.create(model="m", input="Go.", stream=True) as events:
        assert next(iter(events)).type == "response.created"
        go_on.set()


def test_a_client_that_leaves_before_the_first_word_ends_its_response(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [ScriptedReply(text="Ok.", wait_before=go_on)]}, refusal_wait=60)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/responses", json={"model": "m", "input": "Go.", "stream": True}, timeout=0.5)
    until(lambda: is_idle(gateway))
    go_on.set()


def test_a_response_whose_last_event_fills_its_log_is_complete(new_gateway: NewGateway) -> None:
    replies = {"m": lambda _: ScriptedReply(text="x" * 2_000)}
    events = stream(new_gateway(replies), tools=[])
    size = sum(len(json.dumps(event, separators=(",", ":"))) for event in events)
    again = stream(new_gateway(replies, max_response_bytes=size), tools=[])
    assert [event["type"] for event in again] == [event["type"] for event in events]
    assert again[-1]["type"] == "response.completed"


def test_one_that_failed_is_continued_from_what_was_done(new_gateway: NewGateway) -> None:
    script = [
        code("x = 41"),
        ScriptedReply(text="Half", cut_after=1),
        code("print(x + 1)"),
        ScriptedReply(text="Forty-two."),
    ]
    gateway = new_gateway({"m": script})
    failed = stream(gateway)[-1]["response"]
    assert failed["status"] == "failed"
    body = post(gateway, input="Go on.", previous_response_id=failed["id"], include=INCLUDE).json()
    (again,) = outputs(body)
    assert again["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert again["container_id"] == outputs(failed)[0]["container_id"]
    said = [(message["role"], message["content"]) for message in gateway.upstream.requests[2]["messages"]]
    assert [role for role, _ in said] == ["user", "assistant", "tool", "user"]
    assert said[-1][1] == "Go on."


def test_one_that_was_cancelled_is_continued_too(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), code(SLEEP), "Ok."]})
    begun = post(gateway, background=True).json()
    until(lambda: len(gateway.upstream.requests) == 2)
    httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30)
    assert post(gateway, input="Go on.", previous_response_id=begun["id"]).json()["status"] == "completed"
    assert "x = 1" in str(gateway.upstream.requests[2]["messages"])
