"""Responses with the shell: their events and bodies, and what the model is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools.engines.image_versions import contents_told
from agent_tools.engines.recipe import Recipe
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, FUNCTION, INCLUDE, code, commands, in_container, post, shell, stream
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check_response


def shown(body: dict[str, Any], kind: str = "shell_call_output") -> list[Any]:
    return [item for item in body["output"] if item["type"] == kind]


def ask(gateway: Gateway, **body: Any) -> dict[str, Any]:
    answer = post(gateway, **{"tools": [shell()], **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    check_response(found)
    return found


def exits(*codes: int) -> list[dict[str, Any]]:
    return [{"type": "exit", "exit_code": code} for code in codes]


def test_events_come_in_the_order_of_the_hosted_api(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo hello", piece=8), ScriptedReply(text="Done.", piece=9)]})
    events = stream(gateway, tools=[shell()])
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = kinds.count("shell_call_command.delta")
    assert deltas > 1
    assert kinds == [
        *("created", "in_progress", "output_item.added", "shell_call_command.added"),
        *["shell_call_command.delta"] * deltas,
        *("shell_call_command.done", "output_item.done", "output_item.added"),
        *("shell_call_output_content.delta", "shell_call_output_content.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    call, output, _ = events[-1]["response"]["output"]
    assert call["action"] == {"commands": ["echo hello"], "timeout_ms": None, "max_output_length": None}
    assert call["environment"]["type"] == "container_reference"
    assert call["status"] == output["status"] == "completed"
    assert call["call_id"] == output["call_id"]
    assert output["output"] == [{"outcome": {"type": "exit", "exit_code": 0}, "stdout": "hello\n", "stderr": ""}]


def test_each_command_has_its_output_its_errors_and_its_exit_code(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo out; echo err >&2; exit 3", "true", "no-such-program"), "Ok."]})
    (output,) = shown(ask(gateway))
    first, second, third = output["output"]
    assert (first["stdout"], first["stderr"]) == ("out\n", "err\n")
    assert (second["stdout"], second["stderr"]) == ("", "")
    assert "not found" in third["stderr"]
    assert [each["outcome"] for each in output["output"]] == exits(3, 0, 127)
    told = gateway.upstream.requests[1]["messages"][-1]
    assert told["role"] == "tool"
    assert told["content"].startswith("command 1: exit code 3\n\nstdout:\n\n```\nout\n```\n\nstderr:\n\n```\nerr\n```")
    assert "command 2: exit code 0\n\n(no output)" in told["content"]


def test_commands_of_one_call_run_at_once(new_gateway: NewGateway) -> None:
    wait = "mkfifo there 2>/dev/null; "  # neither ends without the other
    gateway = new_gateway({"m": [commands(f"{wait}cat there", f"{wait}echo met > there"), "Ok."]})
    (output,) = shown(ask(gateway))
    assert output["output"][0]["stdout"] == "met\n"
    assert [each["outcome"] for each in output["output"]] == exits(0, 0)


def test_files_go_from_command_to_code_and_to_the_files_api(new_gateway: NewGateway) -> None:
    link = ScriptedReply(text="See [it](sandbox:/mnt/data/a.txt).")
    script = [commands("echo 20 > a.txt"), code("int(open('a.txt').read()) + 1"), link]
    gateway = new_gateway({"m": script})
    body = ask(gateway, tools=[shell(), CODE_TOOL], include=INCLUDE)
    (call,), (ran,) = shown(body, "shell_call"), shown(body, "code_interpreter_call")
    assert ran["outputs"] == [{"type": "logs", "logs": "21"}]
    assert call["environment"]["container_id"] == ran["container_id"]
    (citation,) = body["output"][-1]["content"][0]["annotations"]
    files = gateway.client().containers.files
    assert files.content.retrieve(citation["file_id"], container_id=citation["container_id"]).read() == b"20\n"


def test_a_command_that_takes_too_long_is_ended(new_gateway: NewGateway) -> None:
    script = [commands("echo begun; sleep 60", "echo fine", limits={"timeout_ms": 300}), "Ok."]
    gateway = new_gateway({"m": script})
    body = ask(gateway)
    (output,) = shown(body)
    late, fine = output["output"]
    assert late == {"outcome": {"type": "timeout"}, "stdout": "begun\n", "stderr": ""}
    assert fine["outcome"] == {"type": "exit", "exit_code": 0}
    assert shown(body, "shell_call")[0]["action"]["timeout_ms"] == 300
    assert "command 1: timed out" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_no_command_outlasts_the_gateways_own_limit(new_gateway: NewGateway) -> None:
    script = [commands("sleep 60", limits={"timeout_ms": 3_600_000}), "Ok."]
    gateway = new_gateway({"m": script}, max_shell_timeout=0.3)
    assert shown(ask(gateway))[0]["output"][0]["outcome"] == {"type": "timeout"}


@pytest.mark.parametrize("asked", [100, 1_000_000])
def test_output_is_cut_in_its_middle_with_an_exact_note(new_gateway: NewGateway, asked: int) -> None:
    script = [commands("seq 1 20000", limits={"max_output_length": asked}), "Ok."]
    gateway = new_gateway(
        {"m": script},
    )
    events = stream(gateway, tools=[shell()])
    (output,) = shown(events[-1]["response"])
    (printed,) = output["output"]
    kept, whole = min(asked, 40_000), "".join(f"{n}\n" for n in range(1, 20001))
    note = f"\n[... {len(whole) - kept:,} characters left out ...]\n"
    assert printed["stdout"] == whole[: kept // 2] + note + whole[-kept // 2 :]
    assert output["max_output_length"] == asked
    deltas = [event["delta"]["stdout"] for event in events if event["type"].endswith("output_content.delta")]
    assert "".join(deltas) == printed["stdout"]


@pytest.mark.parametrize("piece", [1, 3, 17])
def test_command_deltas_add_up_to_the_commands(new_gateway: NewGateway, piece: int) -> None:
    given = ["echo '\U0001f600 \"x\" \\\\'\r\n# é", "true", "printf '%s' " + "x" * 200]
    escaped = json.dumps({"timeout_ms": 9000, "commands": given})
    gateway = new_gateway({"m": [ScriptedReply(calls=[ScriptedCall("shell", escaped)], piece=piece), "Ok."]})
    events = stream(gateway, tools=[shell()])
    for index, command in enumerate(given):
        own = [event for event in events if event.get("command_index") == index and "_command." in event["type"]]
        added, *deltas, done = own
        assert added["type"].endswith("added")
        assert "".join(event["delta"] for event in deltas) == done["command"] == command
    assert shown(events[-1]["response"], "shell_call")[0]["action"]["commands"] == given


def test_json_is_what_the_stream_ends_with(new_gateway: NewGateway) -> None:
    script = lambda request: (  # noqa: E731
        ScriptedReply(text="Ok.") if request["messages"][-1]["role"] == "tool" else commands("echo a", "echo b")
    )
    gateway = new_gateway({"m": script})
    streamed, whole = stream(gateway, tools=[shell()])[-1]["response"], ask(gateway)
    for body in (streamed, whole):
        for key in ("id", "created_at", "completed_at"):
            del body[key]
        for item in body["output"]:
            for key in ("id", "call_id", "environment"):
                item.pop(key, None)
    assert streamed == whole


def test_the_next_turn_has_the_container_the_commands_and_their_output(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo 20 > a; echo kept"), "Ok.", commands("cat a"), "20."]})
    first = ask(gateway)
    second = ask(gateway, input="And now?", previous_response_id=first["id"])
    assert shown(second)[0]["output"][0]["stdout"] == "20\n"
    assert shown(second, "shell_call")[0]["environment"] == shown(first, "shell_call")[0]["environment"]
    asked = gateway.upstream.requests[2]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert json.loads(asked[1]["tool_calls"][0]["function"]["arguments"]) == {"commands": ["echo 20 > a; echo kept"]}
    assert asked[1]["tool_calls"][0]["id"] == asked[2]["tool_call_id"] == shown(first)[0]["call_id"]
    assert "kept" in asked[2]["content"]


@pytest.mark.parametrize("with_ids", [True, False])
def test_items_sent_back_are_the_same_conversation(new_gateway: NewGateway, with_ids: bool) -> None:
    script = [commands("echo 20 > a; seq 1 3", limits={"timeout_ms": 5000}), "Ok.", commands("cat a"), "20."]
    gateway = new_gateway({"m": script})
    first = ask(gateway)
    items = [{key: item[key] for key in item if key != "id" or with_ids} for item in first["output"]]
    second = ask(gateway, input=[{"role": "user", "content": "Go."}, *items, {"role": "user", "content": "Now?"}])
    assert shown(second)[0]["output"][0]["stdout"] == "20\n"  # it is the container that the call names
    told, again = gateway.upstream.requests[1]["messages"], gateway.upstream.requests[2]["messages"]
    assert again[:3] == told
    listed = gateway.client().responses.input_items.list(second["id"], order="asc").data
    assert [item.type for item in listed] == ["message", "shell_call", "shell_call_output", "message", "message"]


def test_a_reference_stands_for_a_stored_item(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo kept"), "Ok.", "Done."]})
    references = [{"type": "item_reference", "id": item["id"]} for item in ask(gateway)["output"]]
    ask(gateway, input=[*references, {"role": "user", "content": "Go on."}])
    assert "kept" in gateway.upstream.requests[2]["messages"][1]["content"]


def test_output_that_a_client_made_up_is_told_as_one_of_ours(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": ["a", "b"], "max_output_length": 9}}
    printed = [
        {"stdout": "one", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}},
        {"stdout": "", "stderr": "two", "outcome": {"type": "timeout"}},
    ]
    ask(gateway, input=[call, {"type": "shell_call_output", "call_id": "c", "output": printed}])
    asked, told = gateway.upstream.requests[0]["messages"]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"])["max_output_length"] == 9
    assert told["content"] == (
        "command 1: exit code 1\n\nstdout:\n\n```\none\n```\n\ncommand 2: timed out\n\nstderr:\n\n```\ntwo\n```"
    )


@pytest.mark.parametrize("arguments", ['{"commands": [', "[]", '{"commands": []}', '{"commands": [3]}', '{"a": 1}'])
def test_arguments_without_commands_are_told_to_the_model(new_gateway: NewGateway, arguments: str) -> None:
    gateway = new_gateway({"m": [ScriptedReply(calls=[ScriptedCall("shell", arguments)]), "Sorry."]})
    body = stream(gateway, tools=[shell()])[-1]["response"]
    (call,), (output,) = shown(body, "shell_call"), shown(body)
    assert call["status"] == output["status"] == "incomplete"
    (said,) = output["output"]
    assert said["outcome"] == {"type": "exit", "exit_code": 126}
    assert "commands" in said["stderr"]
    assert gateway.upstream.requests[1]["messages"][-1]["content"] == said["stderr"]


def test_too_many_commands_are_told_to_the_model(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands(*["true"] * 17), "Sorry."]})
    stream(gateway, tools=[shell()])
    assert "more than 16" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_the_model_is_offered_the_shell_as_a_function(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Hi.", "Hi."]}, shell_name="bash", max_shell_timeout=5.0, flavour="newest")
    body = ask(gateway, tools=[shell(memory_limit="1g"), FUNCTION])
    assert body["tools"][0] == shell(memory_limit="1g")
    (offered,) = [each["function"] for each in gateway.upstream.requests[0]["tools"] if "city" not in str(each)][:1]
    assert offered["name"] == "bash"
    assert contents_told(Recipe(flavour="newest")) in offered["description"]
    assert set(offered["parameters"]["properties"]) == {"commands", "timeout_ms", "max_output_length"}
    assert "5,000 at most" in offered["parameters"]["properties"]["timeout_ms"]["description"]


@pytest.mark.parametrize(
    ("choice", "sent", "tools"),
    [
        ({"type": "shell"}, {"type": "function", "function": {"name": "shell"}}, 2),
        ({"type": "code_interpreter"}, {"type": "function", "function": {"name": "python"}}, 2),
        ("required", "required", 2),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]}, "required", 1),
    ],
)
def test_the_choice_of_tools(new_gateway: NewGateway, choice: Any, sent: Any, tools: int) -> None:
    gateway = new_gateway({"m": ["Hi."]})
    body = ask(gateway, tools=[CODE_TOOL, shell()], tool_choice=choice)
    assert body["tool_choice"] == choice
    (request,) = gateway.upstream.requests
    assert request["tool_choice"] == sent
    assert len(request["tools"]) == tools


def test_a_choice_of_a_shell_that_is_not_there_is_refused(new_gateway: NewGateway) -> None:
    answer = post(new_gateway({"m": ["Never."]}), tool_choice={"type": "shell"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


def test_a_container_made_ahead_is_used(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("cat a.txt"), "Ok."]})
    client = gateway.client()
    container = client.containers.create(name="ahead")
    client.containers.files.create(container.id, file=("a.txt", b"ahead\n"))
    reference = {"type": "container_reference", "container_id": container.id}
    body = ask(gateway, tools=[{"type": "shell", "environment": reference}, *in_container(container.id)])
    assert shown(body)[0]["output"][0]["stdout"] == "ahead\n"
    assert shown(body, "shell_call")[0]["environment"] == reference == body["tools"][0]["environment"]


def test_uploaded_files_are_where_the_commands_find_them(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("cat a.txt b.txt"), "Ok."]})
    upload = gateway.client().files.create(file=("a.txt", b"up\n"), purpose="user_data")
    part = {"type": "input_file", "filename": "b.txt", "file_data": "aW4K"}
    given = [{"role": "user", "content": [part, {"type": "input_text", "text": "Go."}]}]
    assert shown(ask(gateway, tools=[shell(file_ids=[upload.id])], input=given))[0]["output"][0]["stdout"] == "up\nin\n"


def test_calls_are_limited_in_number(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [ScriptedReply(calls=[*commands("echo a").calls, *commands("echo b").calls]), "Ok."]})
    body = ask(gateway, max_tool_calls=1)
    ran, refused = shown(body)
    assert (ran["status"], refused["status"]) == ("completed", "incomplete")
    assert ran["output"][0]["stdout"] == "a\n"
    assert "is reached" in refused["output"][0]["stderr"]
    assert body["status"] == "completed"


def test_usage_counts_every_round(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("true"), "Ok."]})
    assert ask(gateway)["usage"]["total_tokens"] > 0
    assert 'agent_tools_shell_commands_total{end="completed"} 1.0' in gateway.services.metrics.text().decode()
    assert 'agent_tools_tool_calls_total{status="completed"} 1.0' in gateway.services.metrics.text().decode()
