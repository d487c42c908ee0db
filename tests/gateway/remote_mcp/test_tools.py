"""Tools of MCP servers elsewhere: listed, called, approved, refused, and bounded."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.responses.approvals import Decision
from agent_tools.gateway.responses.mcp_names import model_name
from agent_tools.gateway.responses.remote_tools import RemoteTools
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import (
    CODE_TOOL,
    FUNCTION,
    INCLUDE,
    beside,
    code,
    has_ended,
    is_idle,
    post,
    retrieve,
    stream,
    until,
)
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.remote_mcp.server import ToolServer, tool_server
from tests.opcodes import opcodes

SAY = model_name("box", "say.it")  # which has a dot, and so a mark


@pytest.fixture
def server() -> Iterator[ToolServer]:
    with tool_server() as found:
        yield found


def calling(name: str, arguments: Any = None, id_: str = "c1") -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall(f"box__{name}", arguments or {}, id_)])


def told(gateway: Gateway, number: int = -1) -> list[tuple[str, Any]]:
    messages = gateway.upstream.requests[number]["messages"]  # type: ignore[attr-defined]
    return [(message["role"], message.get("content")) for message in messages]


def offered(gateway: Gateway) -> list[str]:
    tools = gateway.upstream.requests[-1].get("tools", [])  # type: ignore[attr-defined]
    return [tool["function"]["name"] for tool in tools]


def kinds(body: dict[str, Any]) -> list[str]:
    return [item["type"] for item in body["output"]]


def approving(request_id: str, approve: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve, **more}


def test_its_tools_are_listed_and_called(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [calling("add", {"a": 2, "b": 3}), "Five."]}, mcp_servers=(server.entry,))
    events = stream(gateway, tools=[server.tool()])
    body = events[-1]["response"]
    assert kinds(body) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, _ = body["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["add", "say.it", "fail", "wait"]
    assert listed["tools"][0]["annotations"]["readOnlyHint"] is True
    assert listed["tools"][0]["input_schema"]["required"] == ["a", "b"]
    assert (call["name"], call["server_label"], call["output"], call["error"]) == ("add", "box", "5", None)
    assert (call["status"], json.loads(call["arguments"])) == ("completed", {"a": 2, "b": 3})
    assert told(gateway)[-1] == ("tool", "5")
    assert offered(gateway) == ["box__add", SAY, "box__fail", "box__wait"]
    order = list(dict.fromkeys(event["type"] for event in events if "mcp" in event["type"]))
    assert order == [
        *("response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed", "response.mcp_call.in_progress"),
        *("response.mcp_call_arguments.delta", "response.mcp_call_arguments.done", "response.mcp_call.completed"),
    ]


def test_a_failure_of_a_tool_is_told_in_its_item_and_to_the_model(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [calling("fail"), "Sorry."]}, mcp_servers=(server.entry,))
    events = stream(gateway, tools=[server.tool()])
    call = events[-1]["response"]["output"][1]
    assert (call["status"], call["output"], call["error"]["type"]) == ("failed", None, "mcp_tool_execution_error")
    assert "it does not work" in call["error"]["content"]
    assert "it does not work" in told(gateway)[-1][1]
    assert "response.mcp_call.failed" in [event["type"] for event in events]
    assert kinds(events[-1]["response"])[-1] == "message"


@pytest.mark.parametrize("arguments", ["[1]", '{"a": "x"}', '{"a": '])
def test_arguments_that_do_not_fit_are_a_failure(new_gateway: NewGateway, server: ToolServer, arguments: str) -> None:
    reply = ScriptedReply(calls=[ScriptedCall("box__add", arguments)])
    gateway = new_gateway({"m": [reply, "Sorry."]}, mcp_servers=(server.entry,))
    body = post(gateway, tools=[server.tool()]).json()
    assert (body["output"][1]["status"], body["status"]) == ("failed", "completed")


def test_beside_code_and_functions_of_the_client(new_gateway: NewGateway, server: ToolServer) -> None:
    both = ScriptedReply(calls=[ScriptedCall(SAY, {"text": "a"}, "c2"), ScriptedCall("weather", {}, "c3")])
    gateway = new_gateway({"m": [code("1 + 1"), both, "Ok."]}, mcp_servers=(server.entry,))
    first = post(gateway, tools=[CODE_TOOL, FUNCTION, server.tool()], include=INCLUDE).json()
    assert kinds(first) == ["mcp_list_tools", "code_interpreter_call", "mcp_call", "function_call"]
    output = [{"type": "function_call_output", "call_id": "c3", "output": "wet"}]
    second = post(gateway, tools=[FUNCTION, server.tool()], input=output, previous_response_id=first["id"]).json()
    assert second["status"] == "completed"
    assert told(gateway)[-2:] == [("tool", "aa"), ("tool", "wet")]


def test_only_allowed_tools_are_offered(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, mcp_servers=(server.entry,))
    for allowed, names in (
        (["add", "unknown"], ["box__add"]),
        ({"tool_names": ["say.it"]}, [SAY]),
        ({"read_only": True}, ["box__add"]),
        ([], []),
    ):
        post(gateway, tools=[server.tool(allowed_tools=allowed)])
        assert offered(gateway) == names


def test_a_choice_of_a_servers_tool(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, mcp_servers=(server.entry,))
    named = {"type": "mcp", "server_label": "box", "name": "say.it"}
    for choice, sent in (
        (named, {"type": "function", "function": {"name": SAY}}),
        ({"type": "mcp", "server_label": "box"}, "required"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "box"}]}, None),
    ):
        assert post(gateway, tools=[server.tool(), CODE_TOOL], tool_choice=choice).json()["tool_choice"] == choice
        assert gateway.upstream.requests[-1].get("tool_choice") == sent  # type: ignore[attr-defined]
    assert "python" not in offered(gateway)
    answer = post(gateway, tools=[server.tool()], tool_choice={**named, "server_label": "other"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


# -- approval ---------------------------------------------------------------------------------------------------------

ASKED = {"require_approval": "always"}


@pytest.fixture
def asking(new_gateway: NewGateway, server: ToolServer) -> Gateway:
    replies = [calling("add", {"a": 2, "b": 3}), ScriptedReply("Then."), ScriptedReply("Later.")]
    return new_gateway({"m": replies}, mcp_servers=(server.entry,))


@pytest.mark.parametrize("by", ["previous_response_id", "conversation", "input"])
@pytest.mark.parametrize("approve", [True, False])
def test_a_call_is_made_once_it_is_approved(asking: Gateway, server: ToolServer, by: str, approve: bool) -> None:
    tools, more = [server.tool(**ASKED)], {}
    if by == "conversation":
        more = {"conversation": httpx.post(f"{asking.url}/v1/conversations").json()["id"]}
    first = post(asking, tools=tools, **more).json()
    assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
    request = first["output"][1]
    assert (request["name"], json.loads(request["arguments"]), server.calls) == ("add", {"a": 2, "b": 3}, [])
    if by == "previous_response_id":
        more = {by: first["id"]}
    given: list[Any] = [approving(request["id"], approve, reason="Not today.")]
    before = [{"role": "user", "content": "Go."}, *first["output"]] if by == "input" else []
    second = stream(asking, tools=tools, input=[*before, *given], **more)[-1]["response"]
    said = told(asking)
    if approve:
        call = second["output"][1]
        assert kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
        assert (call["output"], call["approval_request_id"], server.calls) == ("5", request["id"], ["add"])
        assert said[-1] == ("tool", "5")
    else:
        assert (kinds(second), server.calls) == (["mcp_list_tools", "message"], [])
        assert said[-1] == ("tool", "The user did not approve this call. Not today.")
    assert [role for role, _ in said] == ["user", "assistant", "tool"]
    check_third(asking, server, by, [*before, *given, *second["output"]], second["id"])


def check_third(asking: Gateway, server: ToolServer, by: str, items: list[Any], id_: str) -> None:
    """A later turn has it in its history, and asks nobody again."""
    calls = list(server.calls)
    later = {"role": "user", "content": "And?"}
    more: dict[str, Any] = {"input": [*items, later]} if by == "input" else {"input": [later]}
    if by == "previous_response_id":
        more[by] = id_
    elif by == "conversation":
        more[by] = retrieve(asking, id_).json()["conversation"]["id"]
    third = post(asking, tools=[server.tool(**ASKED)], **more).json()
    assert (third["status"], server.calls) == ("completed", calls)
    assert [role for role, _ in told(asking)] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_call_that_nobody_decided_about_is_not_made(asking: Gateway, server: ToolServer) -> None:
    first = post(asking, tools=[server.tool(**ASKED)]).json()
    post(asking, tools=[server.tool(**ASKED)], input="Well?", previous_response_id=first["id"])
    assert told(asking)[-2:] == [("tool", "The user has not approved this call."), ("user", "Well?")]
    assert server.calls == []


def test_a_tool_that_is_gone_is_not_called(asking: Gateway, server: ToolServer) -> None:
    first = post(asking, tools=[server.tool(**ASKED)]).json()
    given = [approving(first["output"][1]["id"])]
    second = post(asking, tools=[], input=given, previous_response_id=first["id"]).json()
    assert (kinds(second), second["output"][0]["status"]) == (["mcp_call", "message"], "failed")


def test_the_approved_tool_is_called_and_none_whose_name_is_alike(new_gateway: NewGateway) -> None:
    with tool_server(with_alike=True) as server:
        gateway = new_gateway({"m": [calling(SAY[5:], {"text": "a"}), "Then."]}, mcp_servers=(server.entry,))
        first = post(gateway, tools=[server.tool(**ASKED)]).json()
        assert first["output"][1]["name"] == "say.it"
        items = [{"role": "user", "content": "Go."}, *first["output"], approving(first["output"][1]["id"])]
        second = post(gateway, tools=[server.tool(**ASKED)], input=items).json()
        assert (second["output"][1]["name"], server.calls) == ("say.it", ["say.it"])
        (call,) = gateway.upstream.requests[-1]["messages"][1]["tool_calls"]  # type: ignore[attr-defined]
        assert call["function"]["name"] == SAY


@pytest.mark.parametrize("name", ["say.it", "say_it"])
def test_tools_whose_names_are_alike_are_called_each_by_its_own(new_gateway: NewGateway, name: str) -> None:
    with tool_server(with_alike=True) as server:
        call = calling(model_name("box", name)[5:], {"text": "a"})
        gateway = new_gateway({"m": [call, "Ok."]}, mcp_servers=(server.entry,))
        body = post(gateway, tools=[server.tool()]).json()
        assert (body["output"][1]["name"], server.calls) == (name, [name])


@pytest.mark.parametrize(
    ("approval", "asked"),
    [
        ("always", {"add", "say.it"}),
        ({"never": {"tool_names": ["add"]}}, {"say.it"}),
        ({"always": {"tool_names": ["add"]}}, {"add"}),
        ({"never": {"read_only": True}}, {"say.it"}),
        ({"always": {"tool_names": ["add"]}, "never": {"read_only": True}}, {"add", "say.it"}),
        ({}, {"add", "say.it"}),
    ],
    ids=lambda value: json.dumps(value if not isinstance(value, set) else sorted(value)),
)
def test_who_is_asked(new_gateway: NewGateway, server: ToolServer, approval: Any, asked: set[str]) -> None:
    both = [ScriptedCall("box__add", {"a": 1, "b": 1}, "c1"), ScriptedCall(SAY, {"text": "a"}, "c2")]
    gateway = new_gateway({"m": lambda _: ScriptedReply(calls=both)}, mcp_servers=(server.entry,), max_rounds=1)
    output = post(gateway, tools=[server.tool(require_approval=approval)]).json()["output"]
    assert {item["name"] for item in output if item["type"] == "mcp_approval_request"} == asked


@pytest.mark.parametrize(
    "given", [approving("mcpr_1"), {"type": "mcp_approval_response"}, approving("", True)], ids=str
)
def test_a_decision_about_nothing_is_refused(asking: Gateway, given: dict[str, Any]) -> None:
    answer = post(asking, tools=[], input=[given])
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"].startswith("input[0].")


def call_of(*numbers: int) -> dict[str, Any]:
    functions = [{"name": "box__add", "arguments": str(number)} for number in numbers]
    calls = [{"id": f"c{number}", "function": function} for number, function in zip(numbers, functions)]
    return {"role": "assistant", "tool_calls": calls}


def many_outputs(size: int) -> list[dict[str, Any]]:
    return [call_of(0), *({"role": "tool", "tool_call_id": "c0", "content": ""} for _ in range(size))]


def settle(messages: list[dict[str, Any]], decisions: list[Decision]) -> None:
    nothing: Any = None  # the composer, which only a call needs
    assert [*RemoteTools(GatewayConfig("http://u"), None, decisions).settled(messages, nothing)] == []


@pytest.mark.parametrize(
    ("calls", "added"),
    [(many_outputs, 0), (lambda size: [call_of(*range(size))], 1), (lambda size: [*map(call_of, range(size))], 1)],
    ids=["outputs", "calls", "messages"],
)
def test_decisions_are_found_in_linear_time(calls: Any, added: int) -> None:
    costs = []
    for size in (100, 200):
        refused = Decision("", is_approved=False, reason="", label="box", name="add")
        decisions = [replace(refused, request_id=f"m{each}", arguments=str(each)) for each in range(size)]
        for these in (decisions, decisions[::-1]):
            messages = calls(size)
            before = len(messages)
            costs.append(opcodes(partial(settle, messages, these)))
            assert len(messages) == before + added * size
    assert max(costs[2:]) < 2.2 * min(costs[:2])


# -- servers ----------------------------------------------------------------------------------------------------------


def test_none_is_spoken_to_by_default(new_gateway: NewGateway, server: ToolServer) -> None:
    answer = post(new_gateway({}), tools=[server.tool()])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].type")
    assert "mcp_servers" in answer.text
    ignoring = new_gateway({"m": ["Ok."]}, unknown_tools="ignore")
    assert kinds(post(ignoring, tools=[server.tool()]).json()) == ["message"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"server_url": "http://127.0.0.1:1/mcp"}, "server_url"),
    ({"server_url": "http://user:password@127.0.0.1:1/mcp"}, "server_url"),
    ({"server_url": "file:///etc/passwd"}, "server_url"),
    ({"server_url": "http://[::1/"}, "server_url"),
    ({"server_url": None}, "server_url"),
    ({"server_label": "a b"}, "server_label"),
    ({"connector_id": "connector_gmail"}, "connector_id"),
    ({"headers": {"Host": "elsewhere"}}, "headers"),
    ({"headers": {"x": "a\nb"}}, "headers"),
    ({"headers": {"x": 3}}, "headers.x"),
    ({"authorization": "a\r\nb"}, "authorization"),
    ({"allowed_tools": 3}, "allowed_tools"),
    ({"require_approval": "sometimes"}, "require_approval"),
    ({"allowed_callers": ["anybody"]}, "allowed_callers"),
]


@pytest.mark.parametrize(("wrong", "param"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_refused_by_name(
    new_gateway: NewGateway, server: ToolServer, wrong: dict[str, Any], param: str
) -> None:
    answer = post(new_gateway({}, mcp_servers=(server.entry,)), tools=[server.tool(**wrong)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[0].{param}")


def test_a_label_is_used_once(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({}, mcp_servers=(server.entry,))
    assert "two servers" in post(gateway, tools=[server.tool(), server.tool()]).text
    many = [server.tool(server_label=f"box{number}") for number in range(9)]
    assert "more than 8 MCP servers" in post(gateway, tools=many).text


def test_a_server_that_does_not_answer_is_told_of_and_has_no_tools(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": ["Ok."]}, mcp_servers=("127.0.0.1:9", server.entry))
    away = server.tool(server_label="away", server_url="http://127.0.0.1:9/mcp")
    events = stream(gateway, tools=[away, server.tool()])
    first, second, message = events[-1]["response"]["output"]
    assert (first["tools"], len(second["tools"]), message["type"]) == ([], 4, "message")
    assert first["error"]
    assert "response.mcp_list_tools.failed" in [event["type"] for event in events]


def test_a_call_has_a_time_limit(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [calling("wait"), "Too long."]}, mcp_servers=(server.entry,), mcp_timeout=1.0)
    body = post(gateway, tools=[server.tool()]).json()
    assert "within 1 seconds" in body["output"][1]["error"]["message"]


@pytest.mark.parametrize("approval", ["never", "always"])
def test_the_time_limit_of_a_response_ends_calls(new_gateway: NewGateway, server: ToolServer, approval: str) -> None:
    gateway = new_gateway({"m": [calling("wait"), "Late."]}, mcp_servers=(server.entry,))
    limited = beside(new_gateway, gateway, mcp_servers=(server.entry,), turn_timeout=2.0)
    tools, more = [server.tool(require_approval=approval)], dict[str, Any]()
    if approval == "always":
        asking = post(gateway, tools=tools).json()
        more = {"input": [approving(asking["output"][1]["id"])], "previous_response_id": asking["id"]}
    body = post(limited, tools=tools, **more).json()
    assert (server.calls, body["error"]["message"]) == (["wait"], "The response exceeded its time limit.")


def test_a_response_that_is_cancelled_waits_for_no_server(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [calling("wait"), "Never."]}, mcp_servers=(server.entry,))
    begun = post(gateway, tools=[server.tool()], background=True).json()
    until(lambda: "wait" in server.calls)
    httpx.post(f"{gateway.url}/v1/responses/{begun['id']}/cancel", timeout=30)
    assert until(lambda: has_ended(gateway, begun["id"]))["status"] == "cancelled"
    until(lambda: is_idle(gateway))
    assert not [thread.name for thread in threading.enumerate() if thread.name == "gateway-mcp"]


def test_a_server_that_sends_too_much_fails(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": ["Ok."]}, mcp_servers=(server.entry,), mcp_timeout=10.0, max_mcp_bytes=300)
    listed = post(gateway, tools=[server.tool()]).json()["output"][0]
    assert (listed["tools"], bool(listed["error"])) == ([], True)


def test_tools_and_outputs_are_bounded(new_gateway: NewGateway, server: ToolServer) -> None:
    models = {"m": [calling(SAY[5:], {"text": "a" * 30_000}), "Ok."], "n": ["Ok."]}
    gateway = new_gateway(models, mcp_servers=(server.entry,), max_mcp_tools=3)
    assert "allowed_tools" in post(gateway, model="n", tools=[server.tool()]).json()["output"][0]["error"]
    call = post(gateway, tools=[server.tool(allowed_tools=["say.it"])]).json()["output"][1]
    assert call["output"] == f"{'a' * 20_000}\n[... 20,000 characters left out ...]\n{'a' * 20_000}"


# -- privacy ----------------------------------------------------------------------------------------------------------


def test_secrets_reach_the_server_alone(
    new_gateway: NewGateway, server: ToolServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx2", "httpx", "openai", "mcp.server", "sse_starlette"):
        logging.getLogger(name).setLevel(logging.WARNING)
    gateway = new_gateway({"m": [calling(SAY[5:], {"text": "canary-text"}), "Ok."]}, mcp_servers=(server.entry,))
    secret = {"headers": {"X-Secret": "canary-header"}, "authorization": "canary-token"}
    begun = post(gateway, tools=[server.tool(**secret)], background=True).json()
    body = until(lambda: has_ended(gateway, begun["id"]))
    assert server.headers == {"canary-header", "Bearer canary-token"}
    assert body["tools"] == [
        {
            "type": "mcp",
            "server_url": f"http://{server.entry}/<redacted>",
            "require_approval": "never",
            "server_label": "box",
        }
    ]
    kept = b"".join(path.read_bytes() for path in gateway.services.config.data_dir.glob("gateway.db*"))
    for word in (b"canary-header", b"canary-token", b"canary-query"):
        assert word not in kept
    assert b"canary-text" in kept
    seen = httpx.get(f"{gateway.url}/metrics").text + capfd.readouterr().err
    seen += "\n".join(record.getMessage() + str(record.exc_info) for record in caplog.records)
    assert "canary" not in seen
