"""Agents with a real kernel (in the process double of an engine) and a scripted model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_tools.agents import Assistant, Cancel, FileAccessAgent, PythonExecAgent, ReActChat, TwoAgents
from agent_tools.agents.steps import CallDone, CallReady
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.errors import ModelError
from agent_tools.limits import MIB
from agent_tools.messages import FIGURES, USER, Message
from agent_tools.models import OpenAIModel
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DRAW = f"from IPython.display import Image, display; import base64\ndisplay(Image(base64.b64decode('{DOT}')))"
CANARY = "canary-5f2c"


@pytest.fixture
def tool(work_dir: Path, process_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """The code interpreter on a kernel that is a plain process."""
    patient = {"kill_grace": 10}  # on a busy machine an interrupt takes its time
    with CodeInterpreter({"work_dir": str(work_dir), "limits": patient}, runtime=process_runtime) as tool:
        yield tool


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,4\n")
    return tmp_path / "data.csv"


def code(text: str) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": text})])


def asking(text: str, *files: Path) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"text": text}, *({"file": str(file)} for file in files)]}]


def test_a_file_reaches_the_code(tool: CodeInterpreter, data: Path) -> None:
    model = ScriptedModel([code("print(open('data.csv').read(), end='')"), "done"])
    response = Assistant([tool], model).run_nonstream(asking("What is in it?", data))
    assert response[1]["content"] == "stdout:\n\n```\na,b\n1,2\n3,4\n\n```"
    assert model.asked[0].messages[0]["content"] == "(Uploaded [file](data.csv)) What is in it?"


@pytest.mark.parametrize(("limit", "size"), [(10, 20), (MIB + 100, MIB + 10)], ids=["below the default", "above it"])
def test_the_code_that_is_announced_is_read_by_the_tools_own_limit(
    limit: int, size: int, work_dir: Path, process_runtime: Runtime
) -> None:
    text = "1 #" + "x" * (size - 3)
    model = ScriptedModel([code(text), "done"])
    cfg = {"work_dir": str(work_dir), "limits": {"max_code_bytes": limit}}
    with CodeInterpreter(cfg, runtime=process_runtime) as tool:
        steps = list(ToolLoop(model, [tool]).run([Message(USER, "Run it")]))
    (ready,) = (step for step in steps if isinstance(step, CallReady))
    (done,) = (step for step in steps if isinstance(step, CallDone))
    assert (ready.code == text) == (done.execution is not None) == (size <= limit)


def test_what_the_code_made_of_a_file_stays(tool: CodeInterpreter, data: Path) -> None:
    script = [code("open('data.csv', 'w').write('mine')"), code("open('data.csv').read()"), "done"]
    response = Assistant([tool], ScriptedModel(script)).run_nonstream(asking("Change it", data))
    assert "'mine'" in response[3]["content"]


def test_the_model_is_told_no_paths_of_the_host(tool: CodeInterpreter, data: Path, work_dir: Path) -> None:
    model = ScriptedModel([code(DRAW), "done"])
    messages = asking("Draw", data, data.with_name("missing.csv"))
    response = Assistant([tool], model).run_nonstream(messages)
    told = model.asked[1].messages[-1]["content"]
    assert "missing.csv is not available: no such file or directory" in told
    for folder in (str(work_dir), str(data.parent)):
        assert folder not in str(model.asked[1].messages)
    (figure,) = response[1]["extra"][FIGURES]
    assert f"![fig-001]({Path(figure).name})" in told
    assert Path(figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", [Assistant, ReActChat])
def test_a_model_that_can_see_is_shown_what_the_code_drew(tool: CodeInterpreter, kind: Any) -> None:
    action = ScriptedReply(f"Draw it.\nAction: code_interpreter\nAction Input: ```py\n{DRAW}\n```")
    model = ScriptedModel([code(DRAW) if kind is Assistant else action, "Final Answer: A dot."])
    response = kind([tool], model, show_pictures=4).run_nonstream(asking("Draw"))
    _, image = model.asked[1].messages[-1]["content"]
    assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}}
    assert "user" not in [message["role"] for message in response]


def test_without_being_asked_no_pictures_are_shown(tool: CodeInterpreter) -> None:
    model = ScriptedModel([code(DRAW), "done"])
    Assistant([tool], model).run_nonstream(asking("Draw"))
    assert [message["role"] for message in model.asked[1].messages] == ["user", "assistant", "tool"]


def test_react_runs_fenced_code(tool: CodeInterpreter) -> None:
    action = "Compute.\nAction: code_interpreter\nAction Input: ```py\nx = 6\nprint(x * 7)\n```\n\nObservation"
    response = ReActChat([tool], ScriptedModel([action, "Final Answer: 42"])).run_nonstream(asking("6 * 7?"))
    assert "```\nObservation: stdout:\n\n```\n42\n\n```\nFinal Answer: 42" in response[0]["content"]


def test_arun_cancelled_interrupts_the_code(tool: CodeInterpreter) -> None:
    started = Path(tool.work_dir, "started")
    text = "y = 1\nopen('started', 'w').close()\nwhile True: pass"
    bot = Assistant([tool], ScriptedModel([code(text), "never"]), call_timeout=100)

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while not started.exists():  # noqa: ASYNC110, ASYNC240
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    async def read() -> None:
        async for _ in bot.arun(asking("Run")):
            pass

    anyio.run(run)
    assert tool.run("y").result is not None


def test_cancelling_from_another_thread_interrupts_the_code(tool: CodeInterpreter) -> None:
    cancel, bot = Cancel(), Assistant([tool], ScriptedModel([code("while True: pass"), "never"]), call_timeout=100)
    tool.run("1")
    threading.Timer(0.2, cancel.set).start()
    response = bot.run_nonstream(asking("Run"), cancel=cancel)
    assert "The turn was ended before the code was." in response[1]["content"]


def test_our_logs_hold_nothing_that_was_said(
    tool: CodeInterpreter, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    data.write_text(CANARY)
    replies = [code(f"print(open('data.csv').read(), '{CANARY}'); raise ValueError('{CANARY}')"), f"Say {CANARY}"]
    action = f"{CANARY}\nAction: code_interpreter\nAction Input: print('{CANARY}')"
    with ScriptedServer({"m": replies, "r": [action, f"Final Answer: {CANARY}"]}) as server:
        for name, kind in (("m", Assistant), ("r", ReActChat)):
            model = OpenAIModel(name, server.endpoint)
            response = kind([tool], model, f"Mind {CANARY}").run_nonstream(asking(CANARY, data))
            assert CANARY in str(response)
            model.close()
    ours = [record for record in caplog.records if record.name.startswith("agent_tools")]
    assert ours
    assert CANARY not in "".join(f"{record.getMessage()}{record.exc_text}{record.args}" for record in ours)


# -- the two agents ---------------------------------------------------------------------------------------------------

READ = ScriptedReply(calls=[ScriptedCall("file_access", {"path": "data.csv"})])


def test_one_reads_the_other_computes(tool: CodeInterpreter, data: Path) -> None:
    reader = ScriptedModel([READ, "data.csv has integer columns a and b."])
    coder = ScriptedModel(
        [code("sum(int(line[0]) for line in list(open('data.csv'))[1:])"), "The sum is 4.", "It is still 4."]
    )
    with TwoAgents(reader, coder, root=data.parent, code_interpreter=tool) as analysts:
        assert analysts.prepare("Use data.csv.") == "data.csv has integer columns a and b."
        assert analysts.ask("Sum of a?") == "The sum is 4."
        assert analysts.ask("Sure?") == "It is still 4."
    assert "| a | integer | 0 | 1 |" in reader.asked[1].messages[-1]["content"]
    context, question = coder.asked[0].messages[1:]
    assert context["content"] == "Use data.csv.\n\ndata.csv has integer columns a and b."
    assert question["content"] == "Sum of a?"
    assert "4" in coder.asked[1].messages[-1]["content"]
    assert coder.asked[2].messages[-2]["content"] == "The sum is 4."
    tool.run("1")  # was passed in, so it is open still


def test_the_first_cannot_run_code(tool: CodeInterpreter, data: Path) -> None:
    block = "```python\nprint(1)\n```"
    model = ScriptedModel([code("open('ran', 'w')"), f"{block}\nprint(1)", '{"name": "code_interpreter"}'])
    agent = FileAccessAgent(model, data.parent, tool)
    assert agent.task("Run this") == f"{block}\nprint(1)"
    assert "there is no tool of that name. Tools: file_access." in model.asked[1].messages[-1]["content"]
    assert [each["function"]["name"] for each in model.asked[0].tools] == ["file_access"]
    assert not Path(tool.work_dir, "ran").exists()
    assert tool.sandbox is None


def test_a_task_that_failed_is_in_no_later_conversation(tool: CodeInterpreter) -> None:
    class Away:
        def reply(self, *_: Any) -> Any:
            raise ModelError("The model's server does not answer.")

    agent = PythonExecAgent(Away(), tool)
    with pytest.raises(ModelError):
        agent.task("What is six times seven?")
    assert agent.messages == []


def test_the_second_cannot_see_the_host(tool: CodeInterpreter, data: Path) -> None:
    reading = ScriptedReply(calls=[ScriptedCall("file_access", {"path": "data.csv"})])
    model = ScriptedModel([reading, code("import os; print(os.path.exists('data.csv'))"), "no"])
    agent = PythonExecAgent(model, tool)
    agent.messages.append(Message.of(asking("Read it", data)[0]))
    assert agent.task("What is in data.csv?") == "no"
    assert "no tool of that name. Tools: code_interpreter." in model.asked[1].messages[-1]["content"]
    assert model.asked[2].messages[-1]["content"].startswith("stdout:\n\n```\nFalse")
    assert [each["function"]["name"] for each in model.asked[0].tools] == ["code_interpreter"]
