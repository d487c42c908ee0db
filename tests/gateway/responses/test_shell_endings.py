"""Shell calls that do not end by themselves, on engines that do not work or are elsewhere, and at the client's."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from agent_tools.containers.kept_variables import PARKED
from agent_tools.engines.engine import Engine
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.asking import (
    CODE_TOOL,
    code,
    commands,
    events_of,
    has_ended,
    is_idle,
    post,
    retrieve,
    shell,
    stream,
    until,
)
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.engines import DeadEngine, SilentEngine
from tests.gateway.strict import check_response

LOCAL = {"type": "shell", "environment": {"type": "local"}}


def has_printed(gateway: Gateway, id_: str, text: str) -> bool:
    job = next((each for each in gateway.app.state.jobs.all_of(object) if each.id == id_), None)
    return bool(job) and any(f'"stdout":"{text}' in str(event.data) for event in job.log.events)


def shown(body: dict[str, Any], kind: str = "shell_call_output") -> list[Any]:
    return [item for item in body["output"] if item["type"] == kind]


def test_a_response_in_the_background_is_polled_and_streamed_again(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": [commands("echo seven"), ScriptedReply(text="Seven.", wait_before=go_on)]})
    begun = post(gateway, background=True, tools=[shell()]).json()
    go_on.set()
    ended = check_response(until(lambda: has_ended(gateway, begun["id"])))
    assert ended.status == "completed"
    again = events_of(retrieve(gateway, begun["id"], "?stream=true").text)
    assert [event["delta"] for event in again if "output_content.delta" in event["type"]] == [{"stdout": "seven\n"}]


def test_commands_of_a_cancelled_response_end_and_keep_what_they_printed(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo begun; sleep 60", "echo other; sleep 61")]})
    begun = post(gateway, background=True, tools=[shell()]).json()
    until(lambda: has_printed(gateway, begun["id"], "begun") and has_printed(gateway, begun["id"], "other"))
    cancelled = httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30).json()
    assert check_response(cancelled).status == "cancelled"
    (output,) = shown(cancelled)
    assert output["status"] == "incomplete"
    assert [each["stdout"] for each in output["output"]] == ["begun\n", "other\n"]
    assert [each["outcome"] for each in output["output"]] == [{"type": "exit", "exit_code": 137}] * 2
    until(lambda: is_idle(gateway))


def test_a_stream_that_is_hung_up_on_ends_its_commands(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo begun; sleep 60")]})
    body = {"model": "m", "input": "Go.", "tools": [shell()], "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, timeout=60) as answer:
        assert any("begun" in line and "output_content.delta" in line for line in answer.iter_lines())
    until(lambda: is_idle(gateway))


def test_a_response_past_its_time_limit_ends_its_commands(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo begun; sleep 60")]}, turn_timeout=3.0)
    events = stream(gateway, tools=[shell()])
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    (output,) = shown(events[-1]["response"])
    assert output["status"] == "incomplete"


@pytest.mark.parametrize("engine", [DeadEngine(), SilentEngine()], ids=["dead", "silent"])
def test_without_an_engine_a_response_fails_and_says_so(new_gateway: NewGateway, engine: Engine) -> None:
    runtime = Runtime(engine, lambda packages: "none")
    gateway = new_gateway({"m": lambda _: commands("true", "false")}, runtime)
    events = stream(gateway, tools=[shell()])
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "code_interpreter_unavailable"
    (output,) = shown(events[-1]["response"])
    assert [each["outcome"]["exit_code"] for each in output["output"]] == [126, 126]


def test_files_cross_to_an_engine_elsewhere_and_back(new_gateway: NewGateway) -> None:
    runtime = Runtime(ProcessEngine(shares_files=False), lambda packages: "none")
    script = [commands("cat a.txt > b.txt; echo back"), ScriptedReply(text="[b](sandbox:/mnt/data/b.txt)")]
    gateway = new_gateway({"m": script}, runtime)
    part = {"type": "input_file", "filename": "a.txt", "file_data": "aW4K"}
    given = [{"role": "user", "content": [part, {"type": "input_text", "text": "Go."}]}]
    body = post(gateway, tools=[shell()], input=given).json()
    assert shown(body)[0]["output"][0]["stdout"] == "back\n"
    (citation,) = body["output"][-1]["content"][0]["annotations"]
    files = gateway.client().containers.files
    assert files.content.retrieve(citation["file_id"], container_id=citation["container_id"]).read() == b"in\n"
    runtime.close_all()


def test_the_model_is_told_that_the_sandbox_was_replaced(new_gateway: NewGateway) -> None:
    script = [commands("echo kept > a"), "Ok.", code("1"), "Ok.", commands("cat a"), "Ok."]
    gateway = new_gateway({"m": script}, max_sandboxes=1, max_kept_sandboxes=1, keep_variables=False)
    first = post(gateway, tools=[shell()]).json()
    post(gateway, tools=[CODE_TOOL])
    body = post(gateway, tools=[shell()], previous_response_id=first["id"]).json()
    assert shown(body)[0]["output"][0]["stdout"] == "kept\n"
    assert gateway.upstream.requests[-1]["messages"][-1]["content"].startswith(PARKED)


@pytest.mark.parametrize("tool", [LOCAL, {"type": "shell"}])
def test_a_shell_of_the_clients_own_is_its_to_run(new_gateway: NewGateway, tool: dict[str, Any]) -> None:
    gateway = new_gateway({"m": [commands("ls", limits={"timeout_ms": 9}), ScriptedReply(text="One file.")]})
    body = stream(gateway, tools=[tool])[-1]["response"]
    assert body["tools"] == [LOCAL]
    (call,) = body["output"]
    assert (call["type"], call["status"], call["environment"]) == ("shell_call", "completed", {"type": "local"})
    assert call["action"] == {"commands": ["ls"], "timeout_ms": 9, "max_output_length": None}
    output = [{"stdout": "a.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    answer = {"type": "shell_call_output", "call_id": call["call_id"], "output": output}
    second = post(gateway, tools=[tool], previous_response_id=body["id"], input=[answer]).json()
    assert second["output"][0]["content"][0]["text"] == "One file."
    asked, told = gateway.upstream.requests[1]["messages"][-2:]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"])["commands"] == ["ls"]
    assert (told["role"], told["content"]) == ("tool", "exit code 0\n\nstdout:\n\n```\na.txt\n```")
    assert gateway.services.containers.running() == {}
