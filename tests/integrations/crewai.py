"""CrewAI: the example, with a scripted model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from crewai import BaseLLM

from agent_tools import AsyncSandbox
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, interrupting, load_example


class Scripted(BaseLLM):
    """Asks for the tool in ReAct's words, once for each code."""

    def __init__(self, *codes: str) -> None:
        super().__init__(model="scripted")
        self._codes = list(codes)
        self._seen: list[str] = []

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        self._seen.append(str(messages))
        if self._codes:
            given = json.dumps({"code": self._codes.pop(0)})
            return f"Thought: run\nAction: code_interpreter\nAction Input: {given}"
        return "Thought: done\nFinal Answer: done"

    def supports_function_calling(self) -> bool:
        return False


def test_the_example_runs(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox, llm = new_sandbox().sync, Scripted(STATE, f"x + 1\n{PICTURE}\nx + 1", FILE)
    assert load_example("crewai_agent").answer(llm, "go", sandbox) == "done"
    assert "42" in llm._seen[1]
    assert "[a figure]" in llm._seen[2]
    assert "43" in llm._seen[2]
    assert sandbox.read_file("out.txt") == b"42"


@pytest.mark.stops
def test_an_interrupted_call_keeps_the_variables(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox, llm = new_sandbox().sync, Scripted(f"x = 42\n{ENDLESS}", AFTER)
    with interrupting(sandbox):
        load_example("crewai_agent").answer(llm, "go", sandbox)
    assert "KeyboardInterrupt" in llm._seen[1]
    assert "43" in llm._seen[2]
