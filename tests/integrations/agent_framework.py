"""Microsoft Agent Framework: the provider for CodeAct, and the gateway as OpenAI's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool
from agent_framework.openai import OpenAIChatClient

from agent_tools.errors import InvalidParams
from agent_tools.integrations.agent_framework import CodeActProvider
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FILE,
    FIRST,
    KEPT,
    PICTURE,
    PNG,
    STATE,
    cancelled,
    run_page,
    weather,
)


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """Calls `execute_code` with each code, and remembers the tools that it was shown."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)
        self.shown: list[Any] = []

    async def _inner_get_response(self, *, messages: Any, options: Any, stream: bool = False, **_: Any) -> ChatResponse:
        self.shown = options["tools"]
        if not self.codes:
            return ChatResponse(messages=[Message("assistant", ["done"])])
        call = Content.from_function_call(str(len(self.codes)), "execute_code", arguments={"code": self.codes.pop(0)})
        return ChatResponse(messages=[Message("assistant", [call])])


def price(item: str, count: int = 1) -> float:
    """The price of some of an item."""
    return {"pear": 1.5, "plum": 2.5}[item] * count


@pytest.fixture
def provider(cfg: dict[str, Any]) -> Iterator[CodeActProvider]:
    made = CodeActProvider([price], cfg=cfg, max_sandboxes=2)
    yield made
    made.close()


def asked(provider: CodeActProvider, *codes: str, session: Any = None) -> Any:
    agent = Agent(Scripted(*codes), context_providers=[provider])
    return agent.run("go", session=session or agent.create_session(session_id="1"))


def results(response: Any) -> list[Any]:
    contents = [content for message in response.messages for content in message.contents]
    return [content for content in contents if content.type == "function_result"]


def test_an_agent_runs_code_keeps_state_and_gets_pictures_and_files(provider: CodeActProvider) -> None:
    state, picture, file = results(asyncio.run(asked(provider, STATE, PICTURE, FILE)))
    assert "42" in state.result
    (image,) = [item for item in picture.items if item.type == "data"]
    assert base64.b64decode(image.uri.partition(",")[2]).startswith(PNG)
    assert "files written: /workspace/out.txt (2 bytes)" in file.result


def test_code_calls_the_tools_by_their_schema(provider: CodeActProvider) -> None:
    sums, refused, unknown = results(
        asyncio.run(
            asked(
                provider,
                "import asyncio\nsum(await asyncio.gather(price(item='pear', count=2), price(item='plum')))",
                "await price(item=['pear'])",
                "await price(item='nut')",
            )
        )
    )
    assert "5.5" in sums.result
    assert "item" in refused.result
    assert "KeyError" in unknown.result


def test_the_model_sees_one_tool_with_the_stubs_of_the_others(provider: CodeActProvider) -> None:
    client = Scripted("1")
    asyncio.run(Agent(client, context_providers=[provider]).run("go"))
    assert [each.name for each in client.shown] == ["execute_code"]
    assert "async def price(" in client.shown[0].description


def test_sessions_have_sandboxes_of_their_own_and_the_oldest_goes(provider: CodeActProvider) -> None:
    async def turns() -> list[str]:
        agent = Agent(Scripted(), context_providers=[provider])
        sessions = [agent.create_session(session_id=str(number)) for number in range(3)]
        await asked(provider, "x = 1", session=sessions[0])
        found = [await asked(provider, "x", session=session) for session in (sessions[1], sessions[0])]
        oldest = provider.sandbox(sessions[1])
        await asked(provider, "x", session=sessions[0])
        await asked(provider, "1", session=sessions[2])
        assert not oldest.is_alive
        return [results(each)[0].result for each in found]

    other, same = asyncio.run(turns())
    assert "NameError" in other
    assert "1" in same


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(provider: CodeActProvider) -> None:
    async def turns() -> Any:
        session = Agent(Scripted(), context_providers=[provider]).create_session(session_id="1")
        await asked(provider, STATE, session=session)
        await cancelled(asked(provider, ENDLESS, session=session), provider.sandbox(session))
        return await asked(provider, AFTER, session=session)

    (after,) = results(asyncio.run(turns()))
    assert "43" in after.result


@pytest.mark.parametrize("by", ["a tool", "the provider"])
def test_code_that_could_call_what_needs_approval_needs_it(by: str, cfg: dict[str, Any]) -> None:
    tools = [tool(price, approval_mode="always_require")] if by == "a tool" else [price]
    made = CodeActProvider(tools, cfg=cfg, needs_approval=by == "the provider")
    response = asyncio.run(asked(made, "1"))
    made.close()
    kinds = [content.type for message in response.messages for content in message.contents]
    assert "function_approval_request" in kinds
    assert "function_result" not in kinds


def test_what_does_not_run_here_and_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="give it to the agent as a tool"):
        CodeActProvider([OpenAIChatClient.get_code_interpreter_tool()])
    with pytest.raises(InvalidParams, match="Did you mean 'memory'"):
        CodeActProvider(cfg={"memry": 1})


def test_the_page_runs() -> None:
    names = run_page("agent-framework")
    assert names["answer"].text == "They cost 42."
    assert "42" in results(names["answer"])[0].result


@pytest.mark.parametrize("store", [True, False])
def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(gateway_url: str, store: bool) -> None:
    async def turns() -> tuple[str, ...]:
        client = OpenAIChatClient(model="m", base_url=gateway_url, api_key="any")
        tools = [OpenAIChatClient.get_code_interpreter_tool(), weather]
        agent = Agent(client=client, tools=tools, default_options={"store": store})
        session = agent.create_session()
        first = FIRST if store else f"{FIRST} (no reasoning)"  # it would have to be encrypted
        return tuple([(await agent.run(said, session=session)).text for said in (first, AGAIN)])

    assert asyncio.run(turns()) == KEPT
