"""Tools of an MCP server that code in a real container calls."""

from __future__ import annotations

import pytest

from agent_tools.runtime.runtime import Runtime
from tests.gateway.asking import CODE_TOOL, INCLUDE, code, outputs, post
from tests.gateway.conftest import NewGateway, new_gateway, process_runtime
from tests.gateway.remote_mcp.server import tool_server

__all__ = ["new_gateway", "process_runtime"]
pytestmark = pytest.mark.docker


@pytest.mark.parametrize("pool", [0, 1])
def test_code_calls_them_from_a_container_without_a_network(
    new_gateway: NewGateway, docker_runtime: Runtime, pool: int
) -> None:
    script = "box_add(a=2, b=3)['result'] * 2"
    with tool_server() as server:
        replies = [code(script), "Ten.", code("box_add(a=1, b=1)"), "No."]
        gateway = new_gateway({"m": replies}, docker_runtime, mcp_servers=(server.entry,), pool=pool)
        tool = server.tool(allowed_callers=["programmatic"])
        first = post(gateway, tools=[CODE_TOOL, tool], include=INCLUDE).json()
        assert outputs(first)[0]["outputs"] == [{"type": "logs", "logs": "10"}]
        second = post(gateway, include=INCLUDE, previous_response_id=first["id"]).json()
        assert "There is no host function 'box_add'" in outputs(second)[0]["outputs"][0]["logs"]
        assert server.calls == ["add"]
