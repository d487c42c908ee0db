"""OpenAI's Agents SDK for Python, as it is, before the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import openai
import pytest

from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.clients.conversation import (
    CODE_AND_FUNCTION,
    CODE_TOOL,
    FIRST,
    LINK,
    SECOND,
    check_both_told,
    check_upstream,
    serve,
)
from tests.gateway.asking import code, commands
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.remote_mcp.server import ToolServer, tool_server

if TYPE_CHECKING:
    from agents import Agent, RunConfig


def analyst(*functions: Callable[..., Any]) -> Agent:
    from agents import Agent, CodeInterpreterTool, function_tool  # only the worker that runs this file pays for it

    tools = [CodeInterpreterTool(tool_config=CODE_TOOL), *map(function_tool, functions)]
    return Agent(name="Analyst", model="m", tools=tools)


@asynccontextmanager
async def configured(gateway: Gateway) -> AsyncIterator[RunConfig]:
    from agents import OpenAIProvider, RunConfig

    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        yield RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)


async def run(given: Any, config: RunConfig, *functions: Callable[..., Any]) -> tuple[Any, list[str]]:
    from agents import Runner

    return await Runner.run(analyst(*functions), given, run_config=config), []


async def run_streamed(given: Any, config: RunConfig) -> tuple[Any, list[str]]:
    from agents import Runner

    result, kinds = Runner.run_streamed(analyst(), given, run_config=config), []
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            kinds.append(event.data.type)
        elif event.type == "run_item_stream_event":
            kinds.append(event.name)
    return result, kinds


async def two_turns(
    gateway: Gateway, turn: Callable[[Any, RunConfig], Awaitable[tuple[Any, list[str]]]]
) -> tuple[Any, Any, list[str]]:
    """The second turn resends all items of the first, as the SDK gives them."""
    async with configured(gateway) as config:
        first, kinds = await turn("Go.", config)
        second, _ = await turn([*first.to_input_list(), {"role": "user", "content": "And now?"}], config)
        return first, second, kinds


def check(first: Any, second: Any) -> None:
    call, message = (item.raw_item for item in first.new_items)
    assert (call.type, call.status, call.code) == ("code_interpreter_call", "completed", FIRST)
    (said,) = message.content
    assert first.final_output == said.text == f"Twenty, see {LINK}."
    (cited,) = said.annotations
    assert (cited.type, cited.filename) == ("container_file_citation", "twenty.txt")
    assert said.text[cited.start_index : cited.end_index] == "sandbox:/mnt/data/twenty.txt"
    again = second.new_items[0].raw_item
    assert again.code == SECOND
    assert call.container_id == again.container_id == cited.container_id
    assert second.final_output == "21."


def test_two_turns(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    first, second, _ = asyncio.run(two_turns(gateway, run))
    check(first, second)
    check_upstream(gateway)
    assert first.context_wrapper.usage.total_tokens == 30


def test_two_turns_streamed(new_gateway: NewGateway) -> None:
    gateway = serve(new_gateway)
    first, second, kinds = asyncio.run(two_turns(gateway, run_streamed))
    check(first, second)
    check_upstream(gateway)
    order = [
        *("response.created", "response.code_interpreter_call.in_progress"),
        *("response.code_interpreter_call_code.delta", "response.code_interpreter_call_code.done"),
        *("response.code_interpreter_call.interpreting", "response.code_interpreter_call.completed"),
        *("response.output_text.delta", "response.output_text.annotation.added", "response.output_text.done"),
        "response.completed",
    ]
    assert list(dict.fromkeys(kind for kind in kinds if kind in order)) == order
    assert kinds.count("response.code_interpreter_call_code.delta") > 5
    assert [kind for kind in kinds if "." not in kind] == ["tool_called", "message_output_created"]


def test_code_and_a_function_in_one_turn(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": CODE_AND_FUNCTION})

    async def turn() -> Any:
        async with configured(gateway) as config:
            return await run("Go.", config, get_weather)

    result, _ = asyncio.run(turn())
    kinds = [item.type for item in result.new_items]
    said, called = "message_output_item", "tool_call_item"
    assert kinds == [said, called, called, "tool_call_output_item", said]
    assert result.final_output == "Take an umbrella."
    check_both_told(gateway)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_two_turns_with_the_shell(new_gateway: NewGateway, is_streamed: bool) -> None:
    gateway = new_gateway({"m": [commands("echo 20 > a; cat a"), "Twenty.", commands("cat a"), "Still."]})
    first, second = asyncio.run(two_turns_with_the_shell(gateway, is_streamed))
    assert [item["type"] for item in first.to_input_list()[1:]] == ["shell_call", "shell_call_output", "message"]
    assert (first.final_output, second.final_output) == ("Twenty.", "Still.")
    assert second.to_input_list()[-2]["output"][0]["stdout"] == "20\n"
    assert len(gateway.upstream.requests) == 4


async def two_turns_with_the_shell(gateway: Gateway, is_streamed: bool) -> tuple[Any, Any]:
    """The second turn resends all items of the first."""
    from agents import Agent, Runner, ShellTool

    agent = Agent(name="Admin", model="m", tools=[ShellTool(environment={"type": "container_auto"})])

    async def turn(given: Any, config: RunConfig) -> Any:
        if not is_streamed:
            return await Runner.run(agent, given, run_config=config)
        result = Runner.run_streamed(agent, given, run_config=config)
        async for _ in result.stream_events():
            pass
        return result

    async with configured(gateway) as config:
        first = await turn("Go.", config)
        return first, await turn([*first.to_input_list(), {"role": "user", "content": "And now?"}], config)


def get_weather(place: str) -> str:
    """The weather in a place."""
    return f"Rain in {place}."


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_session_kept_as_a_conversation(new_gateway: NewGateway, is_streamed: bool) -> None:
    replies = [code("x = 20; print(x)"), "Twenty.", code("x + 1"), "21."]
    gateway = new_gateway({"m": replies})
    kinds, answers, last = asyncio.run(two_turns_in_a_session(gateway, is_streamed))
    assert kinds == ["message", "code_interpreter_call", "message", "message", "code_interpreter_call", "message"]
    assert answers == ["Twenty.", "21."]
    assert last == ("message", ["message", "code_interpreter_call", "message", "message", "code_interpreter_call"])
    told = [message["content"] for message in gateway.upstream.requests[-1]["messages"] if message["role"] == "tool"]
    assert ["20" in told[0], "21" in told[1]] == [True, True]


async def two_turns_in_a_session(gateway: Gateway, is_streamed: bool) -> tuple[list[str], list[Any], Any]:
    """The kinds of the session's items, what was answered, and the item that was taken back with those that stay."""
    from agents import OpenAIConversationsSession, Runner

    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        session = OpenAIConversationsSession(openai_client=client)
        async with configured(gateway) as config:
            answers = []
            for said in ("Go.", "And now?"):
                if is_streamed:
                    result = Runner.run_streamed(analyst(), said, run_config=config, session=session)
                    async for _ in result.stream_events():
                        pass
                else:
                    result = await Runner.run(analyst(), said, run_config=config, session=session)
                answers.append(result.final_output)
        kinds = [str(item["type"]) for item in await session.get_items()]
        popped = await session.pop_item()
        left = [str(item["type"]) for item in await session.get_items()]
        await session.clear_session()
        return kinds, answers, (popped["type"], left)


def test_an_agent_in_a_conversation(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 20"), "Ok.", code("x + 1"), "21."]})

    async def turns() -> list[Any]:
        from agents import Runner

        async with configured(gateway) as config:
            id_ = (await config.model_provider.get_model("m")._client.conversations.create()).id
            results = [await Runner.run(analyst(), "Go.", run_config=config, conversation_id=id_) for _ in range(2)]
            return [result.final_output for result in results]

    assert asyncio.run(turns()) == ["Ok.", "21."]
    assert [message["role"] for message in gateway.upstream.requests[-1]["messages"]] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant", "tool")
    ]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_hosted_mcp_tool(new_gateway: NewGateway, is_asked: bool) -> None:
    replies = [ScriptedReply(calls=[ScriptedCall("box__add", {"a": 2, "b": 3})]), "Five."]
    with tool_server() as server:
        gateway = new_gateway({"m": replies}, mcp_servers=(server.entry,))
        result, requests = asyncio.run(a_turn_with_mcp(gateway, server, is_asked))
        assert (result.final_output, server.calls, requests) == ("Five.", ["add"], ["add"] * is_asked)


async def a_turn_with_mcp(gateway: Gateway, server: ToolServer, is_asked: bool) -> tuple[Any, list[str]]:
    """The tools that a person was asked about, and the result."""
    from agents import Agent, HostedMCPTool, Runner

    requests: list[str] = []

    def approve(request: Any) -> Any:
        requests.append(request.data.name)
        return {"approve": True}

    config = server.tool(require_approval="always" if is_asked else "never")
    tool = HostedMCPTool(tool_config=config, on_approval_request=approve if is_asked else None)
    async with configured(gateway) as run_config:
        return await Runner.run(Agent(name="A", model="m", tools=[tool]), "Go.", run_config=run_config), requests


def test_the_clients_own_files_are_patched(new_gateway: NewGateway) -> None:
    from agents import Agent, ApplyPatchTool, Runner, apply_diff

    files = {"a.txt": "one\ntwo\n"}

    class Editor:
        def create_file(self, operation: Any) -> None:
            files[operation.path] = apply_diff("", operation.diff, "create")

        def update_file(self, operation: Any) -> str:
            files[operation.path] = apply_diff(files[operation.path], operation.diff)
            return "It fits."

        def delete_file(self, operation: Any) -> None:
            del files[operation.path]

    operations = [
        {"type": "create_file", "path": "b.txt", "diff": "+new"},
        {"type": "update_file", "path": "a.txt", "diff": "@@\n one\n-two\n+three"},
        {"type": "delete_file", "path": "b.txt"},
    ]
    calls = [ScriptedCall("apply_patch", each, id=f"call_{each['type']}") for each in operations]
    gateway = new_gateway({"m": [*(ScriptedReply(calls=[call]) for call in calls), "Done."]})
    agent = Agent(name="Editor", model="m", tools=[ApplyPatchTool(editor=Editor())])

    async def go() -> Any:
        async with configured(gateway) as config:
            return await Runner.run(agent, "Go.", run_config=config)

    assert asyncio.run(go()).final_output == "Done."
    assert files == {"a.txt": "one\nthree\n"}
    told = [message["content"] for message in gateway.upstream.requests[-1]["messages"] if message["role"] == "tool"]
    assert (len(told), told[1]) == (3, "It fits.")
