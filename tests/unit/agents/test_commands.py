"""A turn with a tool that runs commands."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallCommand, CallDone, CallReady, CallRunning, Finished, Step
from agent_tools.agents.transcript import Transcript
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.errors import ToolServiceError
from agent_tools.messages import USER, Message
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply
from agent_tools.tools.command_tool import CommandEnd, CommandNews, CommandText, CommandTool

HI = [Message(USER, "hi")]
RUN = ScriptedReply(calls=[ScriptedCall("shell", {"commands": ["a"]}, "c1")])


class Shell(CommandTool):
    """A tool that says that it runs commands; it can be made to wait until it is cancelled, or to fail."""

    name = "shell"
    description = "Runs commands."
    parameters = {"type": "object", "properties": {}, "required": []}  # noqa: RUF012

    def __init__(self, waits: bool = False, fails: bool = False) -> None:
        super().__init__()
        self.waits, self.fails = waits, fails
        self.ended = threading.Event()

    def call(self, params: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def run(self, params: str, cancelled: threading.Event) -> Generator[CommandNews, None, str]:
        yield CommandText(0, "stdout", "a")
        if self.fails:
            raise ToolServiceError(code="Gone", message="The sandbox is gone.")
        if self.waits:
            assert self.ended.wait(10)
        yield CommandEnd(0, 0, "a", was_cancelled=cancelled.is_set())
        return "exit code 0"

    def cancel(self) -> None:
        self.ended.set()


def run(tool: Shell, *, stop_at: type | None = None) -> list[Step]:
    cancel, found = Cancel(), []
    for step in ToolLoop(ScriptedModel([RUN, "Ok."]), [tool]).run(HI, cancel):
        found.append(step)
        if stop_at and isinstance(step, stop_at):
            cancel.set()
    return found


def test_what_commands_print_comes_between_the_call_and_its_answer() -> None:
    steps = run(Shell())
    (ready,) = [step for step in steps if isinstance(step, CallReady)]
    (done,) = [step for step in steps if isinstance(step, CallDone)]
    assert ready.code is None
    assert (done.content, done.execution, done.failure) == ("exit code 0", None, None)
    start = steps.index(CallRunning("c1", "shell"))
    assert steps[start + 1 : steps.index(done)] == [
        CallCommand("c1", CommandText(0, "stdout", "a")),
        CallCommand("c1", CommandEnd(0, 0, "a")),
    ]


def test_cancelling_the_turn_ends_the_commands() -> None:
    steps = run(Shell(waits=True), stop_at=CallCommand)
    assert CallCommand("c1", CommandEnd(0, 0, "a", was_cancelled=True)) in steps
    assert isinstance(steps[-1], Finished)
    assert steps[-1].reason == "cancelled"


def test_a_tool_that_fails_midway_is_told_to_the_model() -> None:
    (done,) = [step for step in run(Shell(fails=True)) if isinstance(step, CallDone)]
    assert done.text == "The tool shell failed: The sandbox is gone."
    assert isinstance(done.failure, ToolServiceError)


def test_what_commands_print_does_not_change_a_transcript() -> None:
    assert not Transcript(None).add(CallCommand("c1", CommandText(0, "stdout", "a")))
