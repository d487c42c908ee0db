"""Responses with `apply_patch`: in a container where the tool names one, else by the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, code, commands, post, shell, stream
from tests.gateway.conftest import Gateway, NewGateway

HERE = {"type": "apply_patch", "environment": {"type": "container_auto"}}
THERE = {"type": "apply_patch"}
CREATE = {"type": "create_file", "path": "a.txt", "diff": "+one\n+two\n+"}
UPDATE = {"type": "update_file", "path": "/mnt/data/a.txt", "diff": "@@\n one\n-two\n+three"}
DELETE = {"type": "delete_file", "path": "a.txt"}


def patch(operation: Any, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("apply_patch", operation)], **more)


def outputs(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["status"], item["output"]) for item in body["output"] if item["type"] == "apply_patch_call_output"]


def file_names(gateway: Gateway) -> list[str]:
    (container,) = gateway.client().containers.list()
    return [file.path for file in gateway.client().containers.files.list(container.id)]


def test_files_are_created_changed_and_deleted_in_the_container(new_gateway: NewGateway) -> None:
    script = [patch(CREATE), patch(UPDATE), commands("cat a.txt"), code("print(open('a.txt').read())"), patch(DELETE)]
    gateway = new_gateway({"m": [*script, "Done."]})
    body = post(gateway, tools=[HERE, shell(), CODE_TOOL], include=["code_interpreter_call.outputs"]).json()
    kinds = [item["type"] for item in body["output"]]
    assert kinds == [
        *("apply_patch_call", "apply_patch_call_output") * 2,
        *("shell_call", "shell_call_output", "code_interpreter_call"),
        *("apply_patch_call", "apply_patch_call_output", "message"),
    ]
    assert body["output"][5]["output"][0]["stdout"] == "one\nthree\n"
    assert body["output"][6]["outputs"][0]["logs"] == "one\nthree\n\n"
    ends = [("completed", f"{done}.") for done in ("Created a.txt", "Updated /mnt/data/a.txt", "Deleted a.txt")]
    assert outputs(body) == ends
    assert [item["operation"] for item in body["output"] if item["type"] == "apply_patch_call"] == [
        *(CREATE, UPDATE, DELETE)
    ]
    assert file_names(gateway) == []
    assert body["tools"][0] == THERE


def test_its_events_are_those_of_every_item(new_gateway: NewGateway) -> None:
    events = stream(new_gateway({"m": [patch(CREATE, piece=5), "Done."]}), tools=[HERE])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:6] == ["output_item.added", "output_item.done"] * 2
    call, output = (event["item"] for event in events[2:6:2])
    assert (call["operation"], call["call_id"]) == (CREATE, output["call_id"])


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (UPDATE, "a.txt"),
        (DELETE, "a.txt"),
        ({**CREATE, "path": "folder/deep/b.txt", "diff": "no plus"}, "begins with no '+'"),
        ({**DELETE, "path": "."}, "folder"),
        ({**CREATE, "path": "/proc/x/y"}, "No such file"),
        ({**DELETE, "path": "bytes"}, "Deleted bytes."),
        ({"type": "update_file", "path": "bytes", "diff": "@@\n-a"}, "no text in UTF-8"),
        ({"type": "move_file", "path": "a"}, "no operation"),
        ({"type": "update_file", "path": "a"}, "needs a diff"),
        ("no json", "not JSON"),
    ],
)
def test_what_cannot_be_done_is_told(new_gateway: NewGateway, operation: Any, says: str) -> None:
    gateway = new_gateway({"m": [code("open('bytes', 'wb').write(b'\\xff'); ..."), patch(operation), "Sorry."]})
    body = post(gateway, tools=[HERE, CODE_TOOL]).json()
    ((status, text),) = outputs(body)
    assert status == ("completed" if "Deleted" in says else "failed")
    assert says in text
    assert gateway.upstream.requests[-1]["messages"][-1]["content"] == text


def test_a_file_that_exists_is_not_overwritten(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [patch(CREATE), patch({**CREATE, "diff": "+other"}), commands("cat a.txt"), "Ok."]})
    body = post(gateway, tools=[HERE, shell()]).json()
    assert [status for status, _ in outputs(body)] == ["completed", "failed"]
    assert body["output"][5]["output"][0]["stdout"] == "one\ntwo\n"


@pytest.mark.parametrize("tools", [[THERE], [{**THERE, "environment": {"type": "local"}}, CODE_TOOL]])
def test_without_a_container_the_client_makes_the_change(new_gateway: NewGateway, tools: list[Any]) -> None:
    gateway = new_gateway({"m": [patch(UPDATE, piece=7), "Done."]})
    first = post(gateway, tools=tools).json()
    (call,) = first["output"]
    assert (call["type"], call["status"], call["operation"]) == ("apply_patch_call", "completed", UPDATE)
    output = {"type": "apply_patch_call_output", "call_id": call["call_id"], "status": "completed"}
    more = {"input": [{**output, "output": "It is done."}], "previous_response_id": first["id"]}
    second = post(gateway, tools=tools, **more).json()
    assert second["output"][-1]["content"][0]["text"] == "Done."
    messages = gateway.upstream.requests[-1]["messages"]
    assert json.loads(messages[-2]["tool_calls"][0]["function"]["arguments"]) == UPDATE
    assert messages[-1]["content"] == "It is done."


def test_arguments_that_are_none_reach_the_client_as_they_are(new_gateway: NewGateway) -> None:
    body = post(new_gateway({"m": [patch("nonsense")]}), tools=[THERE]).json()
    assert body["output"][0]["operation"] == {"type": "update_file", "path": "", "diff": "nonsense"}


def test_items_that_are_sent_again_are_the_models_calls(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [patch(CREATE), "Done.", patch(UPDATE), "Done."]})
    first = post(gateway, tools=[HERE]).json()
    again = [{"role": "user", "content": "Go."}, *first["output"], {"role": "user", "content": "And?"}]
    second = post(gateway, tools=[HERE], input=again).json()
    assert outputs(second) == [("completed", "Updated /mnt/data/a.txt.")]  # in the same container
    messages = gateway.upstream.requests[2]["messages"]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == CREATE
    assert messages[2]["content"] == "Created a.txt."


def test_the_choice_may_be_it(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [patch(CREATE), "Done."]})
    post(gateway, tools=[HERE, CODE_TOOL], tool_choice={"type": "apply_patch"})
    assert gateway.upstream.requests[0]["tool_choice"]["function"] == {"name": "apply_patch"}
    other = {"type": "apply_patch", "environment": {"type": "container_auto", "memory_limit": "4g"}}
    differs = post(gateway, tools=[other, shell(memory_limit="1g")])
    assert (differs.status_code, differs.json()["error"]["param"]) == (400, "tools")
    function = {"type": "function", "name": "apply_patch", "parameters": {"type": "object", "properties": {}}}
    assert post(gateway, tools=[HERE, function]).status_code == 400
