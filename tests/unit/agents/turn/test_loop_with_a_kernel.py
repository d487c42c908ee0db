"""A turn with a real kernel (in the process double of an engine) and a real client of a scripted server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import CallDelta, CallDone, CallOutput, CallReady, Finished, Step
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.messages import USER, Message
from agent_tools.models import OpenAIModel
from agent_tools.models.base import Usage
from agent_tools.results.execution import Error, Stream
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

HI = [Message(USER, "hi")]


@pytest.fixture
def tool(work_dir: Path, process_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """The code interpreter on a kernel that is a plain process."""
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        yield tool


def code(text: str) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": text})], piece=3)


def done(steps: list[Step]) -> list[CallDone]:
    return [step for step in steps if isinstance(step, CallDone)]


def test_a_whole_turn(tool: CodeInterpreter) -> None:
    first = "x = 20\nprint('a', flush=True)\nopen('made.txt', 'w').close()"
    replies = [code(first), code("x / 0"), code("x + 1"), "It is 21."]
    with ScriptedServer({"m": replies}) as server:
        model = OpenAIModel("m", server.endpoint)
        steps = list(ToolLoop(model, [tool]).run(HI))
        model.close()
    made, raised, valued = done(steps)
    assert made.execution is not None
    assert [change.name for change in made.execution.changes] == ["made.txt"]
    assert made.content == "stdout:\n\n```\na\n\n```"
    assert raised.execution is not None
    assert isinstance(raised.execution.error, Error)
    assert "ZeroDivisionError" in raised.text
    assert valued.content == "execute_result:\n\n```\n21\n```"
    assert server.requests[3]["messages"][-1]["content"] == valued.content
    assert steps[-1] == Finished("stop", Usage(40, 20))
    ready = next(step for step in steps if isinstance(step, CallReady))
    deltas = [step.code for step in steps if isinstance(step, CallDelta) and step.id == ready.call.id]
    assert "".join(deltas) == ready.code == first


def test_output_comes_while_the_code_runs(tool: CodeInterpreter) -> None:
    gate = Path(tool.work_dir, "gate")
    text = "import os, time\nprint('before', flush=True)\n"
    text += "while not os.path.exists('gate'): time.sleep(0.01)\nprint('after')"
    seen = []
    for step in ToolLoop(ScriptedModel([code(text), "ok"]), [tool]).run(HI):
        if isinstance(step, CallOutput):
            seen.append(step.output)
            gate.touch()  # the code ends only if its first output was seen
    assert seen == [Stream("stdout", "before\n"), Stream("stdout", "after\n")]


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_cancelling_ends_the_code(tool: CodeInterpreter, is_stubborn: bool) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" if is_stubborn else ""
    text = f"{deaf}y = 1\nprint('on', flush=True)\nwhile True: pass"
    cancel, steps = Cancel(), []
    for step in ToolLoop(ScriptedModel([code(text), "never"]), [tool], call_timeout=100).run(HI, cancel):
        steps.append(step)
        if isinstance(step, CallOutput):
            threading.Timer(0.1, cancel.set).start()  # by then the loop waits for the code
    assert steps[-1] == Finished("cancelled", Usage(10, 5))
    assert "The turn was ended" in done(steps)[0].text
    assert tool.run("print('y' in globals())").stdout == f"{not is_stubborn}\n"


def test_closing_the_turn_interrupts_the_code(tool: CodeInterpreter) -> None:
    turn = ToolLoop(ScriptedModel(code("y = 1\nprint('on', flush=True)\nwhile True: pass")), [tool], call_timeout=100)
    steps = turn.run(HI)
    assert any(isinstance(step, CallOutput) for step in steps)
    steps.close()
    assert tool.run("y").result is not None


def test_a_deadline_ends_the_code(tool: CodeInterpreter) -> None:
    tool.run("1")  # so that the deadline is for the code
    steps = list(ToolLoop(ScriptedModel(code("while True: pass")), [tool], deadline=0.5, call_timeout=100).run(HI))
    assert steps[-1] == Finished("deadline", Usage(10, 5))


def test_code_that_is_none_is_an_answer(tool: CodeInterpreter) -> None:
    bad = ScriptedReply(calls=[ScriptedCall("code_interpreter", '{"code": 3}')])
    (answer,) = done(list(ToolLoop(ScriptedModel([bad, "ok"]), [tool]).run(HI)))
    assert answer.text.startswith("The tool code_interpreter failed: params has a 'code' of type int")
    assert os.getcwd() not in answer.text
