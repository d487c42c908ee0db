"""The tools of a real MCP server as host functions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from agent_tools.code_mode import Policy, Toolset, mcp_tools
from agent_tools.code_mode.async_script import AsyncScript
from agent_tools.errors import GuestError
from tests import mcp_server
from tests.code_mode import sandbox

if TYPE_CHECKING:
    from mcp import ClientSession


def with_tools(use: Callable[[Toolset], Awaitable[None]], *, is_process: bool = False, **options: Any) -> None:
    """Connect to the server, in a process of its own or in this one, and use its tools."""

    async def main() -> None:
        async with _in_a_process() if is_process else _here() as session:
            await use(Toolset(await mcp_tools(session, **options)))

    asyncio.run(main())


@asynccontextmanager
async def _in_a_process() -> AsyncIterator[ClientSession]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    started = StdioServerParameters(command=sys.executable, args=[mcp_server.__file__])
    async with stdio_client(started) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


@asynccontextmanager
async def _here() -> AsyncIterator[ClientSession]:
    from mcp import Client

    async with Client(mcp_server.server) as client:
        yield client.session


async def run(script: AsyncScript, body: str) -> Any:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    await script.load_script(f"import asyncio\nasync def main():\n{lines}")
    return await script.run("main")


def test_schemas_become_types_and_results_are_structured() -> None:
    async def use(tools: Toolset) -> None:
        stubs = tools.stubs()
        assert "async def w_get_weather(*, city: str, days: int | None = None) -> WGetWeatherResult:" in stubs
        assert "class WGetWeatherResult(TypedDict):\n    city: str\n    celsius: int" in stubs
        assert "async def w_plain_text() -> str:" in stubs
        async with sandbox(tools) as script:
            both = "return await asyncio.gather(w_get_weather(city='Oslo', days=2), w_get_weather(city='Rome'))"
            assert await run(script, both) == [{"city": "Oslo", "celsius": 22}, {"city": "Rome", "celsius": 21}]
            assert await run(script, "return await w_plain_text()") == "only text"

    with_tools(use, is_process=True, prefix="w_")


def test_a_tool_whose_name_python_does_not_have_is_called_by_another() -> None:
    async def use(tools: Toolset) -> None:
        async with sandbox(tools) as script:
            assert "user 7" in str(await run(script, "return await user_find(user='7')"))

    with_tools(use, include=["user.*"])


def test_a_tool_that_fails_raises_in_the_guest_with_the_server_s_words() -> None:
    async def use(tools: Toolset) -> None:
        async with sandbox(tools) as script:
            with pytest.raises(GuestError, match=r"McpError: .*fail"):
                await run(script, "await fail(why='out of cheese')")

    with_tools(use)


def test_arguments_are_checked_before_the_server_is_asked() -> None:
    async def use(tools: Toolset) -> None:
        async with sandbox(tools) as script:
            with pytest.raises(GuestError, match=r"HostCallArgumentError: get_weather: .*city"):
                await run(script, "await get_weather(city=5)")

    with_tools(use)


def test_names_are_chosen_by_patterns_and_share_a_policy() -> None:
    async def use(tools: Toolset) -> None:
        assert list(tools.functions) == ["get_weather"]
        assert tools.functions["get_weather"].policy.max_calls == 1

    with_tools(use, include=["get_*"], policy=Policy(max_calls=1))


def test_one_odd_tool_costs_no_other_and_parts_without_text_are_named() -> None:
    async def use(tools: Toolset) -> None:
        async with sandbox(tools) as script:
            assert await run(script, "return await draw(shape='a')") == "A square:\n[image]"

    with_tools(use, include=["draw", "plain-text"])
