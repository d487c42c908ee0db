"""verl: its own agent loop calls the tool, which its own YAML names."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.schemas import ToolResponse
from verl.tools.tool_registry import initialize_tools_from_config

from agent_tools.errors import InvalidParams
from agent_tools.integrations.verl import CodeInterpreterTool
from agent_tools.runtime.engine_lookup import shared_runtime
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, begun, run_page


class Loop(ToolAgentLoop):
    """verl's loop without a model: calls of tools are its own."""

    def __init__(self, tools: list[Any]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.max_tool_response_length = 10_000
        self.tool_response_truncate_side = "middle"

    async def called(self, trajectory: AgentData, code: str) -> tuple[ToolResponse, float, dict[str, Any]]:
        call = FunctionCall(name="code_interpreter", arguments=json.dumps({"code": code}))
        done: tuple[ToolResponse, float, dict[str, Any]] = await self._call_tool(call, {}, trajectory)
        return done

    async def text(self, trajectory: AgentData, code: str) -> str:
        return (await self.called(trajectory, code))[0].text or ""


def trajectory() -> AgentData:
    return AgentData(
        messages=[],
        image_data=None,
        video_data=None,
        audio_data=None,
        mm_processor_kwargs={},
        metrics={},
        request_id="1",
        tools_kwargs={},
    )


@pytest.fixture
def loop(tmp_path: Path, cfg: dict[str, Any]) -> Loop:
    """verl's loop with the tool of a YAML file."""
    config = {"type": "native", "timeout": 60, "pictures": True, "cfg": cfg}
    entry = {"class_name": "agent_tools.integrations.verl.CodeInterpreterTool", "config": config}
    path = tmp_path / "tools.yaml"
    path.write_text(json.dumps({"tools": [entry]}))
    return Loop(initialize_tools_from_config(path))


def test_a_trajectory_keeps_its_state_and_shares_it_with_no_other(loop: Loop) -> None:
    async def turns() -> None:
        one, other = trajectory(), trajectory()
        assert "42" in await loop.text(one, STATE)
        assert "out.txt" in await loop.text(one, FILE)
        response, reward, metrics = await loop.called(one, PICTURE)
        assert "[a figure]" in (response.text or "")
        assert [image.mode for image in response.image or ()] == ["RGB"]
        assert (reward, metrics["ok"]) == (0.0, True)
        assert "NameError" in await loop.text(other, "x")
        assert "43" in await loop.text(one, AFTER)

    asyncio.run(turns())


@pytest.mark.stops
def test_a_cancelled_call_keeps_the_variables(loop: Loop) -> None:
    async def turns() -> None:
        mine = trajectory()
        await loop.text(mine, STATE)
        tool = loop.tools["code_interpreter"]
        call = asyncio.ensure_future(loop.text(mine, ENDLESS))
        await begun(call, tool._sandboxes[mine])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert "43" in await loop.text(mine, AFTER)

    asyncio.run(turns())


def test_the_sandbox_ends_with_the_trajectory(loop: Loop) -> None:
    mine = trajectory()
    asyncio.run(loop.text(mine, STATE))
    tool = loop.tools["code_interpreter"]
    assert len(tool._sandboxes) == 1
    del mine
    gc.collect()
    shared_runtime("docker").settle()
    assert len(tool._sandboxes) == 0


def test_the_page_runs(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where `loop` has the file that the page names
    run_page("verl")


def test_bad_calls_are_answered_and_bad_configs_refused(loop: Loop) -> None:
    async def asked() -> str:
        done = await loop.tools["code_interpreter"].execute("1", {"kode": "1"}, agent_data=trajectory())
        return str(done[0].text)

    assert "in `code`" in asyncio.run(asked())
    with pytest.raises(InvalidParams, match="memory: unknown here"):
        CodeInterpreterTool({"type": "native", "memory": 1})
