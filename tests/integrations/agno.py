"""Agno: the example, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.base import Model
from agno.models.openai import OpenAIResponses
from agno.models.response import ModelResponse

from agent_tools import AsyncSandbox
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FILE,
    FIRST,
    KEPT,
    OPENAI_TOOL,
    PICTURE,
    STATE,
    cancelled,
    load_example,
    weather,
)


class Scripted(Model):
    def __init__(self, *codes: str) -> None:
        super().__init__(id="scripted")
        self.codes = list(codes)

    def _next(self) -> ModelResponse:
        response = ModelResponse(role="assistant")
        if self.codes:
            function = {"name": "code_interpreter", "arguments": json.dumps({"code": self.codes.pop(0)})}
            response.tool_calls = [{"id": str(len(self.codes)), "type": "function", "function": function}]
        else:
            response.content = "done"
        return response

    def invoke(self, *_: Any, **__: Any) -> ModelResponse:
        return self._next()

    async def ainvoke(self, *_: Any, **__: Any) -> ModelResponse:
        return self._next()

    def invoke_stream(self, *_: Any, **__: Any) -> Any:
        yield self._next()

    async def ainvoke_stream(self, *_: Any, **__: Any) -> Any:
        yield self._next()

    def _parse_provider_response(self, response: Any, **_: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def asked(sandbox: AsyncSandbox, *codes: str) -> Any:
    return load_example("agno_agent").answer(Scripted(*codes), "go", sandbox)


def results(run: Any) -> list[str]:
    return [str(message.content) for message in run.messages if message.role == "tool"]


def test_the_example_runs(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox()
    state, picture, file = results(asyncio.run(asked(sandbox, STATE, PICTURE, FILE)))
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


def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(gateway_url: str) -> None:
    model = OpenAIResponses(id="m", base_url=gateway_url, api_key="any")
    history = {"db": InMemoryDb(), "add_history_to_context": True, "session_id": "a"}
    agent = Agent(model=model, tools=[weather, OPENAI_TOOL], **history)
    assert tuple(agent.run(said).content for said in (FIRST, AGAIN)) == KEPT
