"""Microsoft Agent Framework: the example, with a scripted client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agent_framework import BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message

from agent_tools import AsyncSandbox
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, cancelled, load_example


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
