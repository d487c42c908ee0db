"""LangChain: an agent with the tool, their tools in its code, and langchain_tests for tools."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from agent_tools.integrations.langchain import CodeInterpreterTool
from tests.integrations.scenario import AFTER, ENDLESS, PNG, STATE, STEPS, cancelled, run_page


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def scripted(*codes: str) -> Scripted:
    calls = [{"name": "code_interpreter", "args": {"code": code}, "id": str(at)} for at, code in enumerate(codes)]
    return Scripted(messages=iter([*(AIMessage("", tool_calls=[call]) for call in calls), AIMessage("done")]))


def answers(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture
def interpreter(cfg: dict[str, Any]) -> Iterator[CodeInterpreterTool]:
    made = CodeInterpreterTool(cfg=cfg)
    yield made
    made.close()


def test_an_agent_runs_code_keeps_state_and_gets_pictures_and_files(interpreter: CodeInterpreterTool) -> None:
    state, picture, file = answers(create_agent(scripted(*STEPS), [interpreter]).invoke({"messages": "go"}))
    assert "42" in state.content
    assert state.artifact.value == 42
    (image,) = [block for block in picture.content if block["type"] == "image"]
    assert base64.b64decode(image["base64"]).startswith(PNG)
    assert "files written: /workspace/out.txt (2 bytes)" in file.content
    assert interpreter.sandbox.sync.read_file("out.txt") == b"42"


@pytest.mark.stops
def test_a_cancelled_call_keeps_the_variables(interpreter: CodeInterpreterTool) -> None:
    async def turns() -> list[ToolMessage]:
        await create_agent(scripted(STATE), [interpreter]).ainvoke({"messages": "go"})
        endless = create_agent(scripted(ENDLESS), [interpreter])
        await cancelled(endless.ainvoke({"messages": "go"}), interpreter.sandbox)
        return answers(await create_agent(scripted(AFTER), [interpreter]).ainvoke({"messages": "go"}))

    (after,) = asyncio.run(turns())
    assert after.artifact.value == 43


def test_pictures_are_left_out_for_models_that_cannot_see(cfg: dict[str, Any]) -> None:
    blind = CodeInterpreterTool(cfg=cfg, pictures=False)
    (answer,) = answers(create_agent(scripted("plt.plot([1]); plt.show()"), [blind]).invoke({"messages": "go"}))
    assert answer.content == "[a figure]"
    assert len(answer.artifact.images) == 1
    blind.close()


@tool
async def price(item: str, count: int = 1) -> float:
    """The price of some of an item."""
    return {"pear": 1.5, "plum": 2.5}[item] * count


def test_code_calls_the_tools_of_langchain(cfg: dict[str, Any]) -> None:
    interpreter = CodeInterpreterTool(cfg=cfg, functions=[price])
    assert "async def price(*, item: str, count: int | None = None)" in interpreter.description
    code = "import asyncio\nsum(await asyncio.gather(price(item='pear', count=2), price(item='plum')))"
    agent = create_agent(scripted(code, "await price(item=[])"), [interpreter])
    sums, refused = answers(asyncio.run(agent.ainvoke({"messages": "go"})))
    assert sums.artifact.value == 5.5
    assert [call.name for call in sums.artifact.host_calls] == ["price", "price"]
    assert "valid string" in refused.content
    interpreter.close()


def test_the_page_runs() -> None:
    names = run_page("langchain")
    assert "42" in answers(names["answer"])[0].content


class _Tool:
    @pytest.fixture(scope="class")
    def made(self, cfg: dict[str, Any]) -> Iterator[CodeInterpreterTool]:
        made = CodeInterpreterTool(cfg=cfg)
        yield made
        made.close()

    @property
    def tool_constructor(self) -> type[CodeInterpreterTool]:
        return CodeInterpreterTool

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"code": "6 * 7"}


class TestToolUnit(_Tool, ToolsUnitTests):
    pass


class TestTool(_Tool, ToolsIntegrationTests):
    @pytest.fixture
    def tool(self, made: CodeInterpreterTool) -> CodeInterpreterTool:
        return made
