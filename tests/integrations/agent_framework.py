"""Microsoft Agent Framework: the example, with a scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message
from agent_framework.openai import OpenAIChatClient

from agent_tools import AsyncSandbox
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FILE,
    FIRST,
    KEPT,
    PICTURE,
    STATE,
    cancelled,
    load_example,
    weather,
)


class Scripted(FunctionInvocationLayer, BaseChatClient):
    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)

    async def _inner_get_response(self, *, messages: Any, options: Any, stream: bool = False, **_: Any) -> ChatResponse:
        if not self.codes:
            return ChatResponse(messages=[Message("assistant", ["done"])])
        call = Content.from_function_call(
            str(len(self.codes)), "code_interpreter", arguments={"code": self.codes.pop(0)}
        )
        return ChatResponse(messages=[Message("assistant", [call])])


def asked(sandbox: AsyncSandbox, *codes: str) -> Any:
    return load_example("agent_framework_agent").answer(Scripted(*codes), "go", sandbox)


def results(response: Any) -> list[str]:
    contents = [content for message in response.messages for content in message.contents]
    return [str(content.result) for content in contents if content.type == "function_result"]


def test_the_example_runs(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    state, picture, file = results(asyncio.run(asked(new_sandbox(), STATE, PICTURE, FILE)))
    assert "42" in state
    assert "[a figure]" in picture
    assert "out.txt" in file


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    async def turns() -> Any:
        sandbox = new_sandbox()
        await asked(sandbox, STATE)
        await cancelled(asked(sandbox, ENDLESS), sandbox)
        return await asked(sandbox, AFTER)

    (after,) = results(asyncio.run(turns()))
    assert "43" in after


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
