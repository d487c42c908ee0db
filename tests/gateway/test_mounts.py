"""MCP as a door of the gateway: the same keys, and the same containers by the same ids."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from agent_tools.mcp import asgi_app
from agent_tools.testing import ScriptedCall, ScriptedReply
from agent_tools.wires import mount_of
from tests.gateway.conftest import NewGateway
from tests.mcp_door.conftest import text_of
from tests.mcp_door.test_http import HEADERS, LIST, connected

KEYS = ("first-key-123", "second-key-123")
MOUNTS = [asgi_app.MOUNT]
CALL = ScriptedReply(calls=[ScriptedCall("python", {"code": "print(x)"})])


def test_a_container_is_used_by_mcp_and_by_responses(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [CALL, "Done."]}, mounts=MOUNTS, api_keys=KEYS, upstream_key="up")
    client = gateway.client(KEYS[0])
    made = client.containers.create(name="mine").id

    async def main() -> None:
        async with connected(f"{gateway.url}/mcp", KEYS[0]) as mine, connected(f"{gateway.url}/mcp", KEYS[1]) as theirs:
            ran = await mine.call_tool(
                "run_python", {"code": "x = 'kept'; open('a.txt', 'w').close()", "container": made}
            )
            assert ran.structured_content["ok"], text_of(ran)
            refused = await theirs.call_tool("run_python", {"code": "x", "container": made})
            assert "No container found" in text_of(refused)
            of_its_own = (await mine.call_tool("put_file", {"path": "b.txt", "content": "b"})).structured_content
            assert of_its_own["container"] in {each.id for each in client.containers.list()}

    asyncio.run(main())
    assert [each.path for each in client.containers.files.list(made)] == ["/mnt/data/a.txt"]
    tools: Any = [{"type": "code_interpreter", "container": made}]
    client.responses.create(model="m", input="Go.", tools=tools)
    assert "kept" in gateway.upstream.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong-key-123"}])
def test_the_gateways_keys_are_needed(new_gateway: NewGateway, headers: dict[str, str]) -> None:
    gateway = new_gateway({}, mounts=MOUNTS, api_keys=KEYS, upstream_key="up")
    assert httpx.post(f"{gateway.url}/mcp", json=LIST, headers={**HEADERS, **headers}).status_code == 401


def test_a_web_page_reaches_it_no_more_than_the_gateway(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, mounts=MOUNTS)
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert httpx.post(f"{gateway.url}/mcp", json=LIST, headers={**HEADERS, **headers}).status_code == 403


def test_a_gateway_without_it_has_no_such_route(new_gateway: NewGateway) -> None:
    assert httpx.post(f"{new_gateway({}).url}/mcp", json=LIST, headers=HEADERS).status_code == 404


def test_a_wire_for_users_says_so_where_no_key_may_name_them(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    new_gateway({}, mounts=[mount_of("terminal")])
    assert "/terminal is served, but no key may name users" in caplog.text
