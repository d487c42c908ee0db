"""AutoGen: its agents and its tool on the example's executor, and what its tests ask of executors with a kernel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken, FunctionCall
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool

from tests.integrations.scenario import AFTER, ENDLESS, FILE, begun, load_example

AgentToolsCodeExecutor = load_example("autogen_executor").AgentToolsCodeExecutor
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
)


def scripted(code: str) -> ReplayChatCompletionClient:
    arguments = CodeBlock(code, "python")
    call = FunctionCall(id="1", name="CodeExecutor", arguments=f'{{"code": "{arguments.code}"}}')
    step = CreateResult(finish_reason="function_calls", usage=RequestUsage(0, 0), cached=False, content=[call])
    return ReplayChatCompletionClient([step, "done"], model_info=INFO)


def run(work: Any) -> Any:
    return asyncio.run(work)


async def executed(executor: Any, *codes: str, language: str = "python") -> CodeResult:
    return await executor.execute_code_blocks([CodeBlock(code, language) for code in codes], CancellationToken())


def test_agents_and_the_tool_share_state(cfg: dict[str, Any]) -> None:
    async def turns() -> tuple[list[str], str]:
        async with AgentToolsCodeExecutor(cfg, timeout=20) as executor:
            agent = CodeExecutorAgent("runs", code_executor=executor)
            blocks = (
                "```python\nx = 6 * 7\nprint(x)\n```",
                f"```python\n{FILE}\n```\n```sh\ncat out.txt; id -u\n```",
                "```python\n1 / 0\n```",
            )
            answers = [
                (await agent.on_messages([TextMessage(content=each, source="user")], CancellationToken())).chat_message
                for each in blocks
            ]
            bot = AssistantAgent("a", model_client=scripted("x * 2"), tools=[PythonCodeExecutionTool(executor)])
            told = [message.to_text() for message in (await bot.run(task="go")).messages]
        return [answer.to_text() for answer in answers], " ".join(told)

    (state, file, failed), told = run(turns())
    assert "42" in state
    assert "\n42" in file
    assert "ZeroDivisionError" in failed
    assert "84" in told


@pytest.mark.stops
def test_a_cancelled_block_keeps_the_variables(cfg: dict[str, Any]) -> None:
    async def turns() -> CodeResult:
        async with AgentToolsCodeExecutor(cfg, timeout=600) as executor:
            await executed(executor, "x = 42")
            token = CancellationToken()
            job = asyncio.ensure_future(executor.execute_code_blocks([CodeBlock(ENDLESS, "python")], token))
            await begun(job, executor.sandbox)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            return await executed(executor, AFTER)

    assert "43" in run(turns()).output


def test_another_language_is_refused(cfg: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use python or sh"):
        run(executed(AgentToolsCodeExecutor(cfg), "1", language="ruby"))


# -- what AutoGen's tests of its Docker Jupyter executor ask ----------------------------------------------------------


def test_execute_code(cfg: dict[str, Any]) -> None:
    async def turns() -> list[CodeResult]:
        async with AgentToolsCodeExecutor(cfg) as executor:
            return [
                await executed(executor, "import sys; print('hello world!')"),
                await executed(executor, "import sys; print('hello world!')", "a = 100 + 100; print(a)"),
                await executed(executor, "b = a + 100 ; print(b)"),
            ]

    one, two, three = run(turns())
    assert [each.exit_code for each in (one, two, three)] == [0, 0, 0]
    assert "hello world!" in one.output
    assert "hello world!" in two.output
    assert "200" in two.output
    assert "300" in three.output


def test_timeout(cfg: dict[str, Any]) -> None:
    async def turns() -> CodeResult:
        async with AgentToolsCodeExecutor(cfg, timeout=1) as executor:
            return await executed(executor, "import time; time.sleep(10); print('hello world!')")

    result = run(turns())
    assert result.exit_code
    assert "Timeout" in result.output


def test_file_is_created(cfg: dict[str, Any]) -> None:
    async def turns() -> bytes:
        async with AgentToolsCodeExecutor(cfg) as executor:
            assert (await executed(executor, "open('hello.txt', 'w').write('hello world!')")).exit_code == 0
            return await executor.sandbox.read_file("hello.txt")

    assert run(turns()) == b"hello world!"


def test_start_stop(cfg: dict[str, Any]) -> None:
    async def turns() -> None:
        executor = AgentToolsCodeExecutor(cfg)
        await executor.start()
        await executor.restart()
        await executor.stop()
        assert not executor.sandbox.is_alive

    run(turns())
