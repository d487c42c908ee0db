"""Qwen-Agent: one of its agents, whose code_interpreter is ours. It publishes no suite for tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import qwen_agent.tools.base
from qwen_agent.agents import FnCallAgent
from qwen_agent.llm.base import BaseChatModel, register_llm
from qwen_agent.llm.schema import ASSISTANT, FunctionCall, Message

from agent_tools.integrations.qwen_agent import AgentToolsCodeInterpreter
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, interrupting, run_page


@register_llm("scripted")
class Scripted(BaseChatModel):
    def _next(self) -> list[Message]:
        codes = self.cfg["codes"]
        if not codes:
            return [Message(ASSISTANT, "done")]
        return [
            Message(
                ASSISTANT,
                "",
                function_call=FunctionCall("code_interpreter", json.dumps({"code": codes.pop(0)})),
                extra={},
            )
        ]

    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__(cfg)
        self.cfg = cfg

    def _chat_with_functions(self, *_: Any, **__: Any) -> Any:
        return iter([self._next()])

    def _chat_stream(self, *_: Any, **__: Any) -> Any:
        return iter([self._next()])

    def _chat_no_stream(self, *_: Any, **__: Any) -> Any:
        return self._next()

    @property
    def support_multimodal_input(self) -> bool:
        return False


def scripted(*codes: str) -> dict[str, Any]:
    return {"model": "m", "model_type": "scripted", "codes": list(codes)}


@pytest.fixture
def tool(cfg: dict[str, Any], tmp_path: Path) -> Iterator[AgentToolsCodeInterpreter]:
    made = AgentToolsCodeInterpreter({**cfg, "work_dir": str(tmp_path)})
    yield made
    made.close()


def asked(tool: Any, *codes: str, **content: str) -> list[str]:
    agent = FnCallAgent(llm=scripted(*codes), function_list=[tool])
    message = {"role": "user", "content": [{"text": "go"}, *({"file": path} for path in content.values())]}
    *_, messages = agent.run([message])
    return [each["content"] for each in messages if each["role"] == "function"]


def test_it_is_the_tool_of_that_name() -> None:
    assert qwen_agent.tools.base.TOOL_REGISTRY["code_interpreter"] is AgentToolsCodeInterpreter


def test_an_agent_runs_code_on_a_file_and_gets_pictures_and_files(
    tool: AgentToolsCodeInterpreter, tmp_path: Path
) -> None:
    given = tmp_path / "given.csv"
    given.write_text("a,b\n6,7\n")
    state, picture, _ = asked(tool, "x = pd.read_csv('given.csv').prod(axis=1)[0]\nx", PICTURE, FILE, file=str(given))
    assert "42" in state
    assert "![fig-001](" in picture
    assert (tmp_path / "out.txt").read_text() == "42"


@pytest.mark.stops
def test_an_interrupted_call_keeps_the_variables(tool: AgentToolsCodeInterpreter) -> None:
    with interrupting(tool.as_sandbox):
        stopped, after = asked(tool, f"x = 42\n{ENDLESS}", AFTER)
    assert "KeyboardInterrupt" in stopped
    assert "43" in after


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *_, result, answer = run_page("qwen-agent")["messages"]
    assert "42" in result["content"]
    assert answer["content"] == "It is 42."
