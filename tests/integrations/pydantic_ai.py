"""Pydantic AI: agents with our capabilities, and its `WorkspaceBackendSuite`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, ModelRetry
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.native_tools import CodeExecutionTool
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.workspaces import SupportsCommands, WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from agent_tools import AsyncSandbox
from agent_tools.integrations.pydantic_ai import AgentToolsSandbox, AgentToolsWorkspace
from agent_tools.integrations.pydantic_ai_code_mode import CodeMode
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FIRST,
    KEPT,
    PNG,
    STATE,
    STEPS,
    cancelled,
    run_page,
    weather,
)

SKIPPED = {
    "test_fifo_read_does_not_wait_for_writer": "a sandbox has no named pipes, by design",
    "TestCommands.test_native_realpath_keeps_the_working_dir_and_missing_names": "this backend has commands alone",
}


class Scripted(FunctionModel):
    """Calls `run_code` with each code, and remembers the tools that it was shown."""

    def __init__(self, *codes: str) -> None:
        steps = iter([*(ToolCallPart("run_code", {"code": code}) for code in codes), TextPart("done")])
        self.shown: dict[str, str] = {}

        async def answer(messages: Any, info: AgentInfo) -> ModelResponse:
            self.shown = {tool.name: tool.description or "" for tool in info.function_tools}
            return ModelResponse([next(steps)])

        super().__init__(answer)


def parts(result: Any, kind: type[Any]) -> list[Any]:
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, kind)]


@pytest.fixture
def capability(cfg: dict[str, Any]) -> Iterator[AgentToolsSandbox]:
    made = AgentToolsSandbox(cfg=cfg)
    yield made
    made.sandbox.sync.close()


@pytest.fixture
def code_mode(cfg: dict[str, Any]) -> Iterator[CodeMode]:
    made = CodeMode(cfg=cfg)
    yield made
    made.sandbox.sync.close()


def test_an_agent_runs_code_keeps_state_and_gets_pictures_and_files(capability: AgentToolsSandbox) -> None:
    result = asyncio.run(Agent(Scripted(*STEPS), capabilities=[capability]).run("go"))
    state, _, file = parts(result, ToolReturnPart)
    assert "42" in state.content
    assert state.metadata.value == 42
    pictures = [
        each for part in parts(result, UserPromptPart) if isinstance(part.content, list) for each in part.content
    ]
    assert [each.data.startswith(PNG) for each in pictures if hasattr(each, "data")] == [True]
    assert file.content.endswith("files written: /workspace/out.txt (2 bytes)")
    assert asyncio.run(capability.workspace.read_bytes("out.txt")) == b"42"


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(capability: AgentToolsSandbox) -> None:
    async def turns() -> Any:
        await Agent(Scripted(STATE), capabilities=[capability]).run("go")
        await cancelled(Agent(Scripted(ENDLESS), capabilities=[capability]).run("go"), capability.sandbox)
        return await Agent(Scripted(AFTER), capabilities=[capability]).run("go")

    (after,) = parts(asyncio.run(turns()), ToolReturnPart)
    assert after.metadata.value == 43


def price(item: str, count: int = 1) -> float:
    """The price of some of an item."""
    if item not in ("pear", "plum"):
        raise ModelRetry(f"there are no {item}s; ask for pears or plums")
    return {"pear": 1.5, "plum": 2.5}[item] * count


def test_code_calls_the_tools_of_the_agent(code_mode: CodeMode) -> None:
    gathered = "import asyncio\nsum(await asyncio.gather(price(item='pear', count=2), price(item='plum')))"
    model = Scripted(
        gathered,
        "try:\n    await price(item='apple')\nexcept Exception as e:\n    print(e)",
        "await price(item='plum')",
    )
    agent = Agent(model, tools=[price], capabilities=[code_mode])
    first, refused, last = parts(asyncio.run(agent.run("go")), ToolReturnPart)
    assert list(model.shown) == ["run_code"]
    assert "async def price(*, item: str, count: int | None = None)" in model.shown["run_code"]
    assert (first.metadata.value, last.metadata.value) == (5.5, 2.5)
    assert len(first.metadata.host_calls) == 2
    assert "there are no apples; ask for pears or plums" in refused.content


def pay(amount: float) -> str:
    """Pay."""
    raise ApprovalRequired


def test_a_tool_that_waits_for_an_approval_is_an_error_of_the_code(code_mode: CodeMode) -> None:
    agent = Agent(Scripted("await pay(amount=1)"), tools=[pay], capabilities=[code_mode])
    (refused,) = parts(asyncio.run(agent.run("go")), ToolReturnPart)
    assert "pay needs an answer from outside" in refused.content


def test_an_agent_within_a_tool_of_the_code_needs_a_code_mode_of_its_own(code_mode: CodeMode) -> None:
    async def ask() -> str:
        """Ask another agent."""
        return (await Agent(Scripted("1"), capabilities=[code_mode]).run("go")).output

    code = "try:\n    await ask()\nexcept Exception as e:\n    print(e)"
    model = Scripted(code, "2")
    asked, after = parts(asyncio.run(Agent(model, tools=[ask], capabilities=[code_mode]).run("go")), ToolReturnPart)
    assert "Give that agent a CodeMode of its own." in asked.content
    assert after.metadata.value == 2


def test_tools_that_do_not_run_here_stay_tools(cfg: dict[str, Any]) -> None:
    code_mode = CodeMode(cfg=cfg, keeps=lambda tool: tool.name == "price")
    model = Scripted("1")
    asyncio.run(Agent(model, tools=[price], capabilities=[code_mode]).run("go"))
    assert set(model.shown) == {"price", "run_code"}
    assert "def price" not in model.shown["run_code"]
    code_mode.sandbox.sync.close()


def test_a_workspace_of_somebody_else_is_left_to_them(capability: AgentToolsSandbox) -> None:
    context: Any = None
    assert capability.get_workspace(context, ref=WorkspaceRef(provider="other", id="1")) is None


def test_the_page_runs() -> None:
    names = run_page("pydantic-ai")
    assert "42" in parts(names["result"], ToolReturnPart)[0].content
    assert "42" in parts(names["code_result"], ToolReturnPart)[0].content


class Commands(WorkspaceBackend, SupportsCommands):
    """The workspace without its files: Pydantic AI then makes them of commands."""

    def __init__(self, workspace: AgentToolsWorkspace) -> None:
        self.sandbox, self.run = workspace.sandbox, workspace.run  # type: ignore[method-assign]
        self._workspace = workspace

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._workspace.ref

    async def working_dir(self) -> str:
        return await self._workspace.working_dir()

    async def run(self, *args: Any, **kwargs: Any) -> Any: ...


class _Suite(WorkspaceBackendSuite):
    of: Callable[[AsyncSandbox], Any]

    @pytest.fixture(scope="class")
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(scope="class")
    def backend(self, new_sandbox: Callable[[], AsyncSandbox]) -> Any:
        return type(self).of(new_sandbox())

    @pytest.fixture
    def fresh_backend(self, new_sandbox: Callable[[], AsyncSandbox]) -> Callable[[], Any]:
        return lambda: type(self).of(new_sandbox())

    @pytest.fixture
    def destroy_environment(self) -> Callable[[Any], Awaitable[None]]:
        async def destroy(backend: Any) -> None:
            await backend.sandbox.close()

        return destroy

    @pytest.fixture
    def destructive_backend(self, fresh_backend: Callable[[], Any]) -> Callable[[], Any]:
        return fresh_backend

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], Any]:
        return AgentToolsWorkspace.attach


class TestCommands(_Suite):
    of = staticmethod(lambda sandbox: Commands(AgentToolsWorkspace(sandbox)))


class TestFiles(_Suite):
    of = staticmethod(AgentToolsWorkspace)


def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(gateway_url: str) -> None:
    async def turns() -> tuple[str, str]:
        model = OpenAIResponsesModel("m", provider=OpenAIProvider(base_url=gateway_url, api_key="any"))
        agent = Agent(model, capabilities=[NativeTool(CodeExecutionTool())], tools=[weather])
        first = await agent.run(FIRST)
        return first.output, (await agent.run(AGAIN, message_history=first.all_messages())).output

    assert asyncio.run(turns()) == KEPT
