"""An upstream that is asked by its own `/v1/responses`: here another gateway, before a scripted server."""

from __future__ import annotations

from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, FUNCTION, INCLUDE, code, outputs, post, stream
from tests.gateway.conftest import NewGateway


def test_code_runs_before_an_upstream_that_speaks_responses(new_gateway: NewGateway) -> None:
    inner = new_gateway(
        {"m": [code("x = 6; x", piece=3, usage=Usage(10, 2, 1)), ScriptedReply(text="Six.", reasoning="Hm.", piece=2)]}
    )
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    body = stream(outer, include=INCLUDE, instructions="Be brief.", temperature=0.5)[-1]["response"]
    assert outputs(body)[0]["outputs"] == [{"type": "logs", "logs": "6"}]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "reasoning", "message"]
    assert body["output"][2]["content"][0]["text"] == "Six."
    assert body["usage"]["total_tokens"] == 12 + 15
    first, second = inner.upstream.requests
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert first["temperature"] == 0.5
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert inner.services.containers.all_of("local") == []


def test_functions_choices_and_failures_pass_both_ways(new_gateway: NewGateway) -> None:
    both = [ScriptedCall("python", {"code": "1"}, "a"), ScriptedCall("weather", {"city": "Ulm"}, "b")]
    inner = new_gateway(
        {"m": [ScriptedReply(calls=both)], "bad": lambda _: ScriptedReply(status=400, error="too long")}
    )
    outer = new_gateway(
        {}, upstream=f"{inner.url}/v1", upstream_api="responses", data_dir=inner.services.config.data_dir / "outer"
    )
    choice = {"type": "function", "name": "weather"}
    body = stream(outer, tools=[CODE_TOOL, FUNCTION], tool_choice=choice)[-1]["response"]
    assert [item["type"] for item in body["output"]] == ["code_interpreter_call", "function_call"]
    assert inner.upstream.requests[0]["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    answer = post(outer, model="bad")
    assert answer.status_code >= 400
    assert "too long" in answer.json()["error"]["message"]
