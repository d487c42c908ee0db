"""vLLM's tool server, used as vLLM does: MCP over server-sent events, a connection for each response."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client

from tests.gateway.asking import until
from tests.wires.conftest import CHART, Served
from tests.wires.test_terminal import PNG

Call = Callable[..., Awaitable[str]]


async def session(served: Served, stack: AsyncExitStack, key: str = "plain", **headers: str) -> ClientSession:
    named = {"Authorization": f"Bearer {served.keys[key]}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    streams = await stack.enter_async_context(sse_client(f"{served.gateway.url}/vllm/sse", headers=named))
    return await stack.enter_async_context(ClientSession(*streams))


async def said(opened: ClientSession, code: str) -> str:
    result: Any = await opened.call_tool("python", {"code": code})
    return str(result.content[0].text)


def test_the_server_is_named_as_vllm_wants_it(served: Served) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            opened = await session(served, stack, x_session_id="1")
            told: Any = await opened.initialize()
            assert (told.server_info.name, "stateful" in told.instructions) == ("python", True)
            tools = (await opened.list_tools()).tools
            assert [tool.name for tool in tools] == ["python", "cleanup_session"]
            assert not any((tool.meta or {}).get("include_in_prompt", True) for tool in tools)

    asyncio.run(main())
    assert served.rows == []


def test_variables_stay_within_a_response_and_end_with_it(served: Served) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await session(served, stack, x_session_id=name) for name in ("one", "two")]
            for each in (one, two):
                await each.initialize()
            assert await said(one, "x = 41\nprint('set')") == "set"
            assert await said(one, "x + 1") == "42"
            assert "NameError" in await said(two, "x")
            assert "no output" in await said(two, "None")
            assert len(served.rows) == 2
            await one.call_tool("cleanup_session", {})
            assert len(served.rows) == 1
            bad: Any = await one.call_tool("python", {"code": 1})
            assert bad.is_error
        until(lambda: served.rows == [])

    asyncio.run(main())


def test_a_figure_is_mentioned_since_it_cannot_be_shown(served: Served) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            opened = await session(served, stack, x_session_id="1")
            await opened.initialize()
            shown = f"display(Image(base64.b64decode('{PNG}')))"
            code = f"import base64\nfrom IPython.display import Image, display\n{shown}"
            assert "[1 figures, which cannot be shown here]" in await said(opened, code)
            assert await said(opened, CHART) == "[A chart]"

    asyncio.run(main())


def test_a_chat_keeps_its_variables_for_its_owner_alone(served: Served) -> None:
    async def main() -> None:
        for response, key, expected in (("1", "plain", "set"), ("2", "plain", "41"), ("3", "first", "set")):
            async with AsyncExitStack() as stack:
                opened = await session(served, stack, key, x_session_id=response, x_chat_id="chat")
                await opened.initialize()
                code = "print(x if 'x' in globals() else 'set'); x = 41"
                assert await said(opened, code) == expected
                await opened.call_tool("cleanup_session", {})
        assert len(served.rows) == 2

    asyncio.run(main())


def test_a_session_is_used_with_its_own_key_alone(served: Served) -> None:
    url = f"{served.gateway.url}/vllm"
    keys = {name: {"Authorization": f"Bearer {key}"} for name, key in served.keys.items()}
    assert httpx.get(f"{url}/sse").status_code == 401
    assert httpx.get(f"{url}/nope", headers=keys["plain"]).status_code == 404
    with httpx.stream("GET", f"{url}/sse", headers=keys["plain"]) as answer:
        lines = answer.iter_lines()
        place = next(line for line in lines if line.startswith("data:")).removeprefix("data:").strip()
        assert place.startswith("/vllm/messages?session_id=")
        message = {"jsonrpc": "2.0", "method": "ping", "id": 1}
        sent = {
            name: httpx.post(served.gateway.url + place, json=message, headers=key).status_code
            for name, key in keys.items()
        }
        assert sent == {"plain": 202, "first": 404, "second": 404}
        assert (
            httpx.post(served.gateway.url + place, content=b"x" * 5_000_000, headers=keys["plain"]).status_code == 413
        )


@pytest.mark.parametrize("form", ["key:{}", ":{}"])
def test_a_key_may_stand_in_the_url(served: Served, form: str) -> None:
    basic = base64.b64encode(form.format(served.keys["plain"]).encode()).decode()
    for scheme, status in ((f"Basic {basic}", 404), ("Basic !!", 401), ("Basic Og==", 401)):
        assert httpx.get(f"{served.gateway.url}/vllm/x", headers={"Authorization": scheme}).status_code == status
