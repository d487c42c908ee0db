"""Strands: an agent with a sandbox of ours, and what its `Sandbox` promises. It publishes no suite for sandboxes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from strands import Agent, tool
from strands.models.model import Model
from strands.models.openai_responses import OpenAIResponsesModel
from strands.sandbox.base import ExecutionResult, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError

from agent_tools import AsyncSandbox, InvalidParams
from agent_tools.integrations.strands import AgentToolsSandbox
from tests.integrations.scenario import (
    AFTER,
    AGAIN,
    ENDLESS,
    FILE,
    FIRST,
    KEPT,
    OPENAI_TOOL,
    PICTURE,
    PNG,
    STATE,
    cancelled,
    run_page,
    weather,
)


class Scripted(Model):
    """Calls a tool for each step, and then says that it is done."""

    def __init__(self, *steps: tuple[str, dict[str, Any]]) -> None:
        self.steps = list(steps)

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *_: Any, **__: Any) -> Any:
        yield {"messageStart": {"role": "assistant"}}
        name, given = self.steps.pop(0) if self.steps else ("", {})
        start = {"toolUse": {"toolUseId": str(len(self.steps)), "name": name}} if name else {}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}} if name else {"text": "done"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if name else "end_turn"}}


def code(text: str) -> tuple[str, dict[str, Any]]:
    return "code_interpreter", {"code": text}


@pytest.fixture
def sandbox(new_sandbox: Callable[[], AsyncSandbox]) -> AgentToolsSandbox:
    return AgentToolsSandbox(new_sandbox())


def asked(sandbox: AgentToolsSandbox, *steps: tuple[str, dict[str, Any]]) -> Any:
    return Agent(model=Scripted(*steps), sandbox=sandbox, callback_handler=None).invoke_async("go")


def answers(agent: Agent) -> str:
    return str([block for message in agent.messages for block in message["content"] if "toolResult" in block])


def test_an_agent_runs_code_keeps_state_and_writes_files(sandbox: AgentToolsSandbox) -> None:
    agent = Agent(
        model=Scripted(code(STATE), code(FILE), ("sandbox_shell", {"command": "cat out.txt; id -u"})),
        sandbox=sandbox,
        callback_handler=None,
    )
    asyncio.run(agent.invoke_async("go"))
    told = answers(agent)
    assert told.count("42") >= 2
    assert asyncio.run(sandbox.read_text("out.txt")) == "42"


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(sandbox: AgentToolsSandbox) -> None:
    async def turns() -> ExecutionResult:
        await asked(sandbox, code(STATE))
        await cancelled(asked(sandbox, code(ENDLESS)), sandbox.inner)
        return await sandbox.execute_code(AFTER, "python")

    assert asyncio.run(turns()).stdout == "43\n"


def test_code_streams_and_brings_its_figures(sandbox: AgentToolsSandbox) -> None:
    async def chunks() -> list[Any]:
        text = f"x = 42\nprint('out')\nimport sys; print('err', file=sys.stderr)\n{PICTURE}\n1 / 0"
        return [chunk async for chunk in sandbox.execute_code_streaming(text, "python3")]

    *streamed, result = asyncio.run(chunks())
    assert StreamChunk("out\n", "stdout") in streamed
    assert StreamChunk("err\n", "stderr") in streamed
    assert (result.exit_code, "ZeroDivisionError" in result.stderr) == (1, True)
    assert [file.content[:4] for file in result.output_files] == [PNG]


def test_a_command_streams_while_it_runs(sandbox: AgentToolsSandbox) -> None:
    async def first_of_an_endless_one() -> tuple[Any, str]:
        stream = sandbox.execute_streaming("echo first; sleep 600", env={"A": "b"}, cwd="/tmp")
        chunk = await anext(stream)
        await stream.aclose()
        return chunk, (await sandbox.execute("pgrep sleep || echo ended")).stdout

    chunk, after = asyncio.run(first_of_an_endless_one())
    assert chunk == StreamChunk("first\n", "stdout")
    assert after == "ended\n"


def test_a_command_ends_with_all_its_output(sandbox: AgentToolsSandbox) -> None:
    done = asyncio.run(sandbox.execute("seq 100000; echo $A >&2; pwd >&2; exit 3", env={"A": "b"}, cwd="/tmp"))
    assert (done.exit_code, len(done.stdout.split()), done.stderr) == (3, 100_000, "b\n/tmp\n")


def test_what_fails_fails_in_their_words(sandbox: AgentToolsSandbox) -> None:
    async def turns() -> None:
        with pytest.raises(SandboxTimeoutError) as caught:
            await sandbox.execute("echo part; sleep 60", timeout=0.5)
        assert caught.value.stdout == "part\n"
        with pytest.raises(SandboxTimeoutError) as caught:
            await sandbox.execute_code("print('part'); import time; time.sleep(60)", "python", timeout=0.5)
        assert caught.value.stdout == "part\n"
        with pytest.raises(SandboxPathNotFoundError):
            await sandbox.list_files("nothing")
        with pytest.raises(FileNotFoundError):
            await sandbox.remove_file("nothing")
        with pytest.raises(InvalidParams, match="no 'node' here"):
            await sandbox.execute_code("1", "node")
        with pytest.raises(InvalidParams, match="a stateful kernel"):
            await sandbox.execute_code("1", "python", cwd="/tmp")
        await sandbox.write_text("a/b.txt", "text")
        assert [(each.name, each.is_dir, each.size) for each in await sandbox.list_files("a")] == [("b.txt", False, 4)]
        await sandbox.remove_file("a/b.txt")

    asyncio.run(turns())


def test_the_page_runs() -> None:
    assert "42" in answers(run_page("strands")["agent"])


def test_openais_code_interpreter_keeps_its_variables_over_a_function_and_a_turn(gateway_url: str) -> None:
    where = {"base_url": gateway_url, "api_key": "any"}
    model = OpenAIResponsesModel(client_args=where, model_id="m", params={"tools": [OPENAI_TOOL]})
    agent = Agent(model=model, tools=[tool(weather)], callback_handler=None)
    assert tuple(str(agent(said)).strip() for said in (FIRST, AGAIN)) == KEPT
