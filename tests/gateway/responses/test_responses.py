"""Responses with code: their events and bodies, and the requests to the upstream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, FUNCTION, INCLUDE, code, outputs, post, stream
from tests.gateway.conftest import NewGateway
from tests.gateway.strict import check_response


def test_events_come_in_the_order_of_the_hosted_api(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(6 * 7)", piece=8), ScriptedReply(text="It is 42.", piece=4)]})
    events = stream(gateway, include=INCLUDE)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("code_interpreter_call_code.delta")
    assert deltas > 1
    assert kinds == [
        *("created", "in_progress", "output_item.added", "code_interpreter_call.in_progress"),
        *["code_interpreter_call_code.delta"] * deltas,
        *("code_interpreter_call_code.done", "code_interpreter_call.interpreting", "code_interpreter_call.completed"),
        *("output_item.done", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    (call,) = outputs(events[-1]["response"])
    assert call["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert len({event["item_id"] for event in events if "code_interpreter" in event["type"]}) == 1


def test_bodies_are_valid_and_repeat_the_request(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="Hi.", reasoning="Hm."), code("1"), "Done."]})
    body = check_response(post(gateway, temperature=0, metadata={"a": "b"}, instructions="Be brief.").json())
    assert [item.type for item in body.output] == ["reasoning", "message"]
    assert body.temperature == 0
    assert body.metadata == {"a": "b"}
    assert body.instructions == "Be brief."
    assert body.to_dict()["tools"] == [CODE_TOOL]
    assert gateway.upstream.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert gateway.upstream.requests[0]["temperature"] == 0


def test_penalties_reach_the_upstream_and_defaults_are_shown_and_not_sent(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hi.", "Hi."]})
    given = {"presence_penalty": 0.5, "frequency_penalty": -1, "top_p": 0.9, "store": False}
    body, default = post(gateway, **given).json(), post(gateway).json()
    assert {name: body[name] for name in given} == given
    assert {name: default[name] for name in given} == {
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_p": 1,
        "store": True,
    }
    asked, silent = gateway.upstream.requests
    assert {name: asked.get(name) for name in given} == {**given, "store": None}
    assert not given.keys() & silent.keys()


@pytest.mark.parametrize("piece", [1, 3, 17])
@pytest.mark.parametrize("text", ["print('\U0001f600 \"x\" \\\\')\r\n# é", "x = 1\n" * 200])
def test_code_deltas_add_up_to_the_code(new_gateway: NewGateway, piece: int, text: str) -> None:
    escaped = json.dumps({"code": text})
    gateway = new_gateway({"m": [ScriptedReply(calls=[ScriptedCall("python", escaped)], piece=piece), "Ok."]})
    events = stream(gateway)
    deltas = [event["delta"] for event in events if event["type"].endswith("code.delta")]
    (done,) = [event["code"] for event in events if event["type"].endswith("code.done")]
    assert "".join(deltas) == done == text == outputs(events[-1]["response"])[0]["code"]


@pytest.mark.parametrize("include", [INCLUDE, []])
def test_outputs_are_shown_if_asked_for(new_gateway: NewGateway, include: list[str]) -> None:
    gateway = new_gateway({"m": [code("print('P1');1+1;print('P2');2+2;3+3"), "Ok."]})
    events = stream(gateway, include=include)
    (added,) = [e["item"] for e in events if e["type"].endswith("item.added") and "code" in e["item"]]
    assert added["outputs"] == ([] if include else None)
    (call,) = outputs(events[-1]["response"])
    logs = [{"type": "logs", "logs": "P1\nP2\n"}, {"type": "logs", "logs": "6"}]
    assert call["outputs"] == (logs if include else None)
    assert call["status"] == "completed"


def test_json_is_what_the_stream_ends_with(new_gateway: NewGateway) -> None:
    script = lambda request: ScriptedReply(text="Ok.") if request["messages"][-1]["role"] == "tool" else code("7")  # noqa: E731
    gateway = new_gateway({"m": script})
    streamed, whole = stream(gateway, include=INCLUDE)[-1]["response"], post(gateway, include=INCLUDE).json()
    for body in (streamed, whole):
        check_response(body)
        for key in ("id", "created_at", "completed_at"):
            del body[key]
        for item in body["output"]:
            del item["id"]
            item.pop("container_id", None)
    assert streamed == whole


def test_variables_live_on_within_a_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), code("x + 1"), "Two."]})
    first, second = outputs(post(gateway, include=INCLUDE).json())
    assert second["outputs"] == [{"type": "logs", "logs": "2"}]
    assert first["container_id"] == second["container_id"]
    assert first["container_id"].startswith("cntr_")
    assert len(first["container_id"]) <= 64


def test_the_next_turn_has_the_container_the_code_and_its_result(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20; x"), "Ok.", code("x + 1"), "21."]})
    first = post(gateway).json()
    second = post(gateway, input="And now?", previous_response_id=first["id"], include=INCLUDE).json()
    (call,) = outputs(second)
    assert call["outputs"] == [{"type": "logs", "logs": "21"}]
    assert call["container_id"] == outputs(first)[0]["container_id"]
    roles = [message["role"] for message in gateway.upstream.requests[2]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    asked = gateway.upstream.requests[2]["messages"]
    assert asked[1]["tool_calls"][0]["function"]["arguments"] == '{"code": "x = 20; x"}'
    assert "20" in asked[2]["content"]


def test_a_resent_call_brings_its_container_and_its_result(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20; x"), "Ok.", code("x + 1"), "21."]})
    first = post(gateway).json()
    resent = [{"role": "user", "content": "Go."}, *first["output"], {"role": "user", "content": "And now?"}]
    second = post(gateway, input=resent, include=INCLUDE).json()
    assert outputs(second)[0]["outputs"] == [{"type": "logs", "logs": "21"}]
    asked = gateway.upstream.requests[2]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert "20" in asked[2]["content"]
    assert asked[1]["tool_calls"][0]["id"] == asked[2]["tool_call_id"]


def test_a_tool_without_container_is_refused_by_name(new_gateway: NewGateway) -> None:
    answer = post(new_gateway({}), tools=[{"type": "code_interpreter"}])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error == {
        "message": "Missing required parameter: 'tools[0].container'.",
        "type": "invalid_request_error",
        "param": "tools[0].container",
        "code": "missing_required_parameter",
    }


def test_an_exception_is_shown_to_the_model_and_completes_the_call(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1/0"), "It failed."]})
    (call,) = outputs(post(gateway, include=INCLUDE).json())
    assert call["status"] == "completed"
    assert "ZeroDivisionError" in call["outputs"][0]["logs"]
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert "ZeroDivisionError" in told
    assert "1/0" in told


def test_code_that_runs_too_long_fails_its_call_and_not_the_response(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 5\nwhile True: pass"), code("x"), "Ok."]}, timeout=1.0)
    events = stream(gateway, include=INCLUDE)
    body = events[-1]["response"]
    slow, after = outputs(body)
    assert body["status"] == "completed"
    assert slow["status"] == "failed"
    assert "Timeout" in slow["outputs"][-1]["logs"]
    assert after["outputs"] == [{"type": "logs", "logs": "5"}]
    assert [event["type"] for event in events].count("response.code_interpreter_call.completed") == 1


def test_a_kernel_that_dies_fails_its_call_and_the_next_gets_a_fresh_one(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("import os; os._exit(3)"), code("1 + 1"), "Ok."]})
    died, after = outputs(post(gateway, include=INCLUDE).json())
    assert died["status"] == "failed"
    assert "KernelDied" in died["outputs"][-1]["logs"]
    assert after["outputs"][-1] == {"type": "logs", "logs": "2"}


def test_odd_and_long_output_neither_breaks_nor_floods(new_gateway: NewGateway) -> None:
    text = "print('\\U0001f600', chr(0)); print('x' * 10**7)"
    (call,) = outputs(post(new_gateway({"m": [code(text), "Ok."]}), include=INCLUDE).json())
    (log,) = call["outputs"]
    assert log["logs"].startswith("\U0001f600")
    assert "left out" in log["logs"]
    assert len(log["logs"]) < 50_000


def test_text_without_a_newline_stays_in_its_call(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print('no newline', end='')"), code("print('second')"), "Ok."]})
    calls = outputs(post(gateway, include=INCLUDE).json())
    assert [call["outputs"][0]["logs"] for call in calls] == ["no newline", "second\n"]


@pytest.mark.parametrize(
    ("call", "status", "told"),
    [
        (ScriptedCall("python", '{"code": "print(1'), "failed", "cannot be parsed"),
        (ScriptedCall("python", '{"cod": "1"}'), "failed", "no 'code'"),
        (ScriptedCall("python", '{"code": ""}'), "incomplete", "it has no code"),
        (ScriptedCall("nonsense", "{}"), None, "no tool of that name"),
    ],
)
def test_bad_calls_are_told_to_the_model(
    new_gateway: NewGateway, call: ScriptedCall, status: str | None, told: str
) -> None:
    gateway = new_gateway({"m": [ScriptedReply(calls=[call]), "Sorry."]})
    body = stream(gateway)[-1]["response"]
    assert [item["status"] for item in outputs(body)] == ([status] if status else [])
    assert body["status"] == "completed"
    assert told in gateway.upstream.requests[1]["messages"][-1]["content"]
    assert str(gateway.services.config.data_dir) not in json.dumps(gateway.upstream.requests)


def test_several_calls_of_one_reply_keep_their_order(new_gateway: NewGateway) -> None:
    calls = [ScriptedCall("python", {"code": f"y = {n}; print(y)"}) for n in range(3)]
    gateway = new_gateway({"m": [ScriptedReply(calls=calls, piece=5), "Ok."]})
    body = stream(gateway, include=INCLUDE)[-1]["response"]
    assert [call["outputs"][0]["logs"] for call in outputs(body)] == ["0\n", "1\n", "2\n"]


def test_a_model_that_never_stops_calling_is_stopped(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda request: code("1")}, max_rounds=3)
    body = stream(gateway)[-1]["response"]
    assert body["status"] == "incomplete"
    assert len(outputs(body)) == 3
    assert len(gateway.upstream.requests) == 4
    assert gateway.upstream.requests[-1]["tool_choice"] == "none"


def test_only_so_many_calls_are_made(new_gateway: NewGateway) -> None:
    refused = post(new_gateway({}), max_tool_calls=0)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "integer_below_min_value"
    calls = [ScriptedCall("python", {"code": str(n)}) for n in range(3)]
    gateway = new_gateway({"m": [ScriptedReply(calls=calls), "Ok."]})
    body = stream(gateway, max_tool_calls=1)[-1]["response"]
    assert [call["status"] for call in outputs(body)] == ["completed", "incomplete", "incomplete"]
    assert body["status"] == "completed"


@pytest.mark.parametrize(
    ("choice", "sent", "names"),
    [
        (None, None, ["python", "weather"]),
        ("none", "none", ["python", "weather"]),
        ("required", "required", ["python", "weather"]),
        ({"type": "code_interpreter"}, {"type": "function", "function": {"name": "python"}}, ["python", "weather"]),
        (
            {"type": "function", "name": "weather"},
            {"type": "function", "function": {"name": "weather"}},
            ["python", "weather"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]},
            "required",
            ["python"],
        ),
    ],
)
def test_tool_choice_reaches_the_upstream_once(
    new_gateway: NewGateway, choice: Any, sent: Any, names: list[str]
) -> None:
    gateway = new_gateway({"m": [code("1") if choice != "none" else "Ok.", "Ok."]})
    body = post(gateway, tools=[CODE_TOOL, FUNCTION], **({"tool_choice": choice} if choice else {})).json()
    check_response(body)
    first = gateway.upstream.requests[0]
    assert first.get("tool_choice") == sent
    assert [tool["function"]["name"] for tool in first["tools"]] == names
    assert [request.get("tool_choice") for request in gateway.upstream.requests[1:]] in ([], [None], ["auto"])


def test_usage_is_the_sum_of_all_rounds_once(new_gateway: NewGateway) -> None:
    gateway = new_gateway(
        {
            "m": [code("1", usage=Usage(100, 1, 30)), ScriptedReply(text="Ok.", usage=Usage(102, 2, 0, 1))],
            "plain": [ScriptedReply(text="Ok.", usage=Usage(100, 50))],
        }
    )
    assert post(gateway).json()["usage"] == {
        "input_tokens": 202,
        "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 205,
    }
    assert post(gateway, model="plain", tools=[]).json()["usage"]["total_tokens"] == 150


def test_code_and_a_function_of_the_client_in_one_turn(new_gateway: NewGateway) -> None:
    both = [ScriptedCall("python", {"code": "z = 3"}, "c1"), ScriptedCall("weather", {"city": "Ulm"}, "c2")]
    gateway = new_gateway({"m": [ScriptedReply(calls=both), code("z"), "Sunny, 3."]})
    tools = [CODE_TOOL, FUNCTION]
    body = stream(gateway, tools=tools)[-1]["response"]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "function_call"]
    assert body["status"] == "completed"
    call = body["output"][1]
    assert (call["name"], call["call_id"], json.loads(call["arguments"])) == ("weather", "c2", {"city": "Ulm"})
    answer = {"type": "function_call_output", "call_id": "c2", "output": "sunny"}
    after = post(gateway, tools=tools, input=[answer], previous_response_id=body["id"], include=INCLUDE).json()
    assert outputs(after)[0]["outputs"] == [{"type": "logs", "logs": "3"}]
    asked = gateway.upstream.requests[1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "tool"]
    assert {message.get("tool_call_id") for message in asked[2:]} == {"c1", "c2"}
