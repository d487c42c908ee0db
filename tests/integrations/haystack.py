"""Haystack: the example, with a scripted generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from haystack.core.component import component
from haystack.dataclasses import ChatMessage, ToolCall

from agent_tools import AsyncSandbox
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, interrupting, load_example


@component
class Scripted:
    def __init__(self, codes: list[str]) -> None:
        self.codes = list(codes)

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **_: Any) -> dict[str, list[ChatMessage]]:
        if not self.codes:
            return {"replies": [ChatMessage.from_assistant("done")]}
        call = ToolCall(tool_name="code_interpreter", arguments={"code": self.codes.pop(0)})
        return {"replies": [ChatMessage.from_assistant(tool_calls=[call])]}


def results(sandbox: Any, *codes: str) -> list[str]:
    messages = load_example("haystack_agent").answer(Scripted(list(codes)), "go", sandbox)
    return [str(message.tool_call_result.result) for message in messages if message.tool_call_result]


def test_the_example_runs(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox().sync
    state, picture, file = results(sandbox, STATE, PICTURE, FILE)
    assert "42" in state
    assert "[a figure]" in picture
    assert "out.txt" in file
    assert sandbox.read_file("out.txt") == b"42"


@pytest.mark.stops
def test_an_interrupted_call_keeps_the_variables(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox().sync
    with interrupting(sandbox):
        stopped, after = results(sandbox, f"x = 42\n{ENDLESS}", AFTER)
    assert "KeyboardInterrupt" in stopped
    assert "43" in after
