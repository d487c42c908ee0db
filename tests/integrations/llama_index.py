"""LlamaIndex: both of its agents that use tools or code, on ours. It publishes no suite for tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.agent.workflow import CodeActAgent, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ImageBlock
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAIResponses

from agent_tools import AsyncSandbox
from agent_tools.integrations.llama_index import AgentToolsToolSpec
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FIRST,
    KEPT,
    OPENAI_TOOL,
    PNG,
    STATE,
    STEPS,
    cancelled,
    run_page,
    weather,
)


class Scripted(FunctionCallingLLM):
    """Answers with texts, or with calls of a tool."""

    steps: list[Any]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True)

    async def astream_chat_with_tools(self, *_: Any, **__: Any) -> Any:
        return self._streamed()

    async def astream_chat(self, *_: Any, **__: Any) -> Any:
        return self._streamed()

    async def _streamed(self) -> Any:
        step = self.steps.pop(0)
        text = step if isinstance(step, str) else ""
        yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=text, raw=step)

    def get_tool_calls_from_response(self, response: ChatResponse, *_: Any, **__: Any) -> list[ToolSelection]:
        calls = [] if isinstance(response.raw, str) or response.raw is None else [response.raw]
        return [ToolSelection(tool_id="1", tool_name=name, tool_kwargs=given) for name, given in calls]

    def _prepare_chat_with_tools(self, *_: Any, **__: Any) -> Any:
        return {}

    def chat(self, *_: Any, **__: Any) -> Any: ...
    def complete(self, *_: Any, **__: Any) -> Any: ...
    def stream_chat(self, *_: Any, **__: Any) -> Any: ...
    def stream_complete(self, *_: Any, **__: Any) -> Any: ...
    async def achat(self, *_: Any, **__: Any) -> Any: ...
    async def acomplete(self, *_: Any, **__: Any) -> Any: ...
    async def astream_complete(self, *_: Any, **__: Any) -> Any: ...


def scripted(*codes: str) -> Scripted:
    return Scripted(steps=[*(("code_interpreter", {"code": code}) for code in codes), "done"])


@pytest.fixture
def spec(new_sandbox: Callable[[], AsyncSandbox]) -> AgentToolsToolSpec:
    return AgentToolsToolSpec(new_sandbox())


async def results(agent: Any) -> list[Any]:
    handler = agent.run("go")
    found = [event.tool_output async for event in handler.stream_events() if isinstance(event, ToolCallResult)]
    await handler
    return found


def test_an_agent_runs_code_keeps_state_and_gets_pictures_and_files(spec: AgentToolsToolSpec) -> None:
    llm = Scripted(steps=[*scripted(*STEPS).steps[:-1], ("run_command", {"command": "cat out.txt"}), "done"])
    state, picture, file, command = asyncio.run(results(FunctionAgent(tools=spec.to_tool_list(), llm=llm)))
    assert "42" in state.content
    (image,) = [block for block in picture.blocks if isinstance(block, ImageBlock)]
    assert image.resolve_image().read().startswith(PNG)
    assert "files written: /workspace/out.txt (2 bytes)" in file.content
    assert command.content == "42"


def test_a_command_that_fails_is_told_as_failed(spec: AgentToolsToolSpec) -> None:
    assert spec.run_command("echo out; exit 3") == "out\n\n[exit code 3]"
    short = AgentToolsToolSpec(AsyncSandbox(limits={"command_timeout": 1}))
    assert short.run_command("echo out; sleep 60").startswith("out\n\n[ended after 1 s, its time limit]")
    short.sandbox.sync.close()


def test_code_act_runs_in_the_sandbox(spec: AgentToolsToolSpec) -> None:
    steps = ["<execute>\nx = 6 * 7\n</execute>", "<execute>\nprint(x)\n</execute>", "done"]
    first, second = asyncio.run(results(CodeActAgent(code_execute_fn=spec.code_execute_fn, llm=Scripted(steps=steps))))
    assert "'ok': True" in first.content
    assert "42" in second.content


@pytest.mark.stops
def test_a_cancelled_call_keeps_the_variables(spec: AgentToolsToolSpec) -> None:
    async def turns() -> Any:
        await spec.acode_interpreter(STATE)
        (tool,) = [tool for tool in spec.to_tool_list() if tool.metadata.name == "code_interpreter"]
        await cancelled(tool.acall(code=ENDLESS), spec.sandbox)
        return await results(FunctionAgent(tools=spec.to_tool_list(), llm=scripted(AFTER)))

    (after,) = asyncio.run(turns())
    assert "43" in after.content


def test_the_page_runs() -> None:
    assert str(run_page("llama-index")["answer"]) == "It is 42."


@pytest.mark.parametrize("is_tracked", [False, True])  # if not, it sends nothing of a turn before
def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(
    gateway_url: str, is_tracked: bool
) -> None:
    async def turns() -> tuple[str, ...]:
        where = {"api_base": gateway_url, "api_key": "any", "context_window": 8_000}
        llm = OpenAIResponses(model="m", built_in_tools=[OPENAI_TOOL], track_previous_responses=is_tracked, **where)
        agent = FunctionAgent(tools=[weather], llm=llm)
        context = Context(agent)
        said = (f"{FIRST} {is_tracked}", AGAIN) if is_tracked else (FIRST,)
        return tuple([str(await agent.run(each, ctx=context)) for each in said])

    answers = asyncio.run(turns())
    assert answers == KEPT[: len(answers)]
