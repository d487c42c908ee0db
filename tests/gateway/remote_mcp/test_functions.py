"""Tools of MCP servers that code calls: while the response goes on that names them, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent_tools.gateway.responses.mcp_names import code_name
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, is_idle, outputs, post, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.remote_mcp.server import ToolServer, tool_server

BY_CODE = {"allowed_callers": ["programmatic"]}
ADD = "box_add(a=2, b=3)['result'] * 2"


@pytest.fixture
def server() -> Iterator[ToolServer]:
    with tool_server() as found:
        yield found


def logs(body: dict[str, Any]) -> str:
    return "".join(each["logs"] for each in outputs(body)[-1]["outputs"])


def run(gateway: Gateway, *tools: dict[str, object], **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = post(gateway, tools=[CODE_TOOL, *tools], include=INCLUDE, **more).json()
    return body


def test_code_calls_them(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [code(ADD), code("box_say_it(text='a')"), "Ten."]}, mcp_servers=(server.entry,))
    body = run(gateway, server.tool(**BY_CODE))
    assert [item["type"] for item in body["output"]] == [
        *("mcp_list_tools", "code_interpreter_call", "code_interpreter_call", "message")
    ]
    assert "10" in body["output"][1]["outputs"][0]["logs"]
    assert (logs(body), server.calls) == ("{'result': 'aa'}", ["add", "say.it"])
    (function,) = gateway.upstream.requests[0]["tools"]  # type: ignore[attr-defined]
    assert "def box_add(*, a: int, b: int)" in function["function"]["description"]


def test_a_failure_is_an_exception_there(new_gateway: NewGateway, server: ToolServer) -> None:
    script = "try:\n    box_fail()\nexcept Exception as exc:\n    print('caught', exc)"
    gateway = new_gateway({"m": [code(script), "Ok."]}, mcp_servers=(server.entry,))
    assert "it does not work" in logs(run(gateway, server.tool(**BY_CODE)))


def test_they_end_with_the_response(new_gateway: NewGateway, server: ToolServer) -> None:
    later = "box_add(a=1, b=1)"
    gateway = new_gateway({"m": [code(f"x = {ADD}"), "Ok.", code(later), "No."]}, mcp_servers=(server.entry,))
    first = run(gateway, server.tool(**BY_CODE))
    second = run(gateway, previous_response_id=first["id"])
    assert "There is no host function 'box_add'" in logs(second)
    assert server.calls == ["add"]


def test_the_next_response_brings_its_own(new_gateway: NewGateway, server: ToolServer) -> None:
    replies = [code(f"x = {ADD}; print(x)"), "Ok.", code("x + box_add(a=1, b=1)['result']"), "12."]
    gateway = new_gateway({"m": replies}, mcp_servers=(server.entry,))
    first = run(gateway, server.tool(**BY_CODE))
    second = run(gateway, server.tool(**BY_CODE), previous_response_id=first["id"])
    assert logs(second) == "12"


def test_those_that_need_approval_are_not_the_codes_to_call(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": [code("box_say_it(text='a')"), "No."]}, mcp_servers=(server.entry,))
    unasked = {"never": {"tool_names": ["add"]}}
    body = run(gateway, server.tool(**BY_CODE, require_approval=unasked))
    assert "NameError" in logs(body)
    assert "box_say_it" not in gateway.upstream.requests[0]["tools"][0]["function"]["description"]  # type: ignore[attr-defined]


def test_both_may_call(new_gateway: NewGateway, server: ToolServer) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("Ok.")}, mcp_servers=(server.entry,))
    run(gateway, server.tool(allowed_callers=["direct", "programmatic"], allowed_tools=["add"]))
    names = [tool["function"]["name"] for tool in gateway.upstream.requests[0]["tools"]]  # type: ignore[attr-defined]
    assert names == ["python", "box__add"]


def test_code_alone_needs_code(new_gateway: NewGateway, server: ToolServer) -> None:
    answer = post(new_gateway({}, mcp_servers=(server.entry,)), tools=[server.tool(**BY_CODE)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_a_call_that_outlives_its_code_ends_with_the_response(new_gateway: NewGateway, server: ToolServer) -> None:
    script = "import threading\nthreading.Thread(target=box_wait, daemon=True).start()\nimport time; time.sleep(1)"
    gateway = new_gateway({"m": [code(script), "Ok."]}, mcp_servers=(server.entry,), mcp_timeout=3_600.0)
    assert run(gateway, server.tool(**BY_CODE))["status"] == "completed"
    until(lambda: is_idle(gateway))
    assert not [thread.name for thread in threading.enumerate() if thread.name == "gateway-mcp"]


def test_tools_whose_names_are_alike_are_two_functions(new_gateway: NewGateway) -> None:
    names = [code_name("box", name, is_marked=True) for name in ("say.it", "say_it")]
    with tool_server(with_alike=True) as server:
        replies = [code(f"{names[0]}(text='a')"), code(f"{names[1]}(text='a')"), "Ok."]
        gateway = new_gateway({"m": replies}, mcp_servers=(server.entry,))
        assert logs(run(gateway, server.tool(**BY_CODE)))
        assert server.calls == ["say.it", "say_it"]
