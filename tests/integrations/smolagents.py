"""smolagents: a CodeAgent on our executor, and what smolagents' own tests ask of remote executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image
from smolagents import CodeAgent, Model, tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from agent_tools.integrations.smolagents import AgentToolsExecutor
from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, interrupting, run_page


class Scripted(Model):
    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)

    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: run\n<code>\n{self.codes.pop(0)}\n</code>")


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: one of them
        b: the other
    """
    return a + b


@pytest.fixture
def executor(cfg: dict[str, Any]) -> Iterator[AgentToolsExecutor]:
    made = AgentToolsExecutor(cfg)
    made.send_tools({"final_answer": FinalAnswerTool()})
    yield made
    made.cleanup()


def asked(executor: AgentToolsExecutor, *codes: str, **given: Any) -> tuple[Any, list[Any]]:
    agent = CodeAgent(tools=[add], model=Scripted(*codes), executor=executor, verbosity_level=0)
    answer = agent.run("go", additional_args=given)
    return answer, [step for step in agent.memory.steps if hasattr(step, "code_action")]


def test_an_agent_calls_tools_keeps_state_and_recovers_from_an_error(executor: AgentToolsExecutor) -> None:
    answer, (first, failed, last) = asked(
        executor, "x = add(20, b=given)\nprint(x)", "1 / 0", "final_answer({'x': x})", given=22
    )
    assert answer == {"x": 42}
    assert "42" in first.observations
    assert "ZeroDivisionError" in str(failed.error)
    assert last.is_final_answer


def test_an_agent_gets_pictures_and_files(executor: AgentToolsExecutor) -> None:
    answer, (picture, _, _) = asked(executor, f"x = 42\n{PICTURE}", FILE, "final_answer(open('out.txt').read())")
    assert answer == "42"
    assert isinstance(picture.action_output, Image.Image)
    assert executor.sandbox.read_file("out.txt") == b"42"


@pytest.mark.stops
def test_an_interrupted_step_keeps_the_variables(executor: AgentToolsExecutor) -> None:
    with interrupting(executor.sandbox):
        answer, (stopped, _) = asked(executor, f"x = 42\n{ENDLESS}", f"final_answer({AFTER})")
    assert answer == 43
    assert "KeyboardInterrupt" in str(stopped.error)


def test_a_tool_keeps_working_after_the_kernel_was_replaced(executor: AgentToolsExecutor) -> None:
    asked(executor, "final_answer(1)")
    executor.sandbox.restart()
    assert asked(executor, "final_answer(add(1, 2))")[0] == 3


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told(
    executor: AgentToolsExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = Execution((Restarted("it died"), Stream("stdout", "a"), Omitted("5 characters", is_text=True)))
    monkeypatch.setattr(executor.sandbox, "run_code", lambda _: execution)
    logs = executor("1").logs
    assert all(text in logs for text in ("it died", "a\n", "5 characters left out"))


def test_a_final_answer_ends_the_code_whatever_it_catches(executor: AgentToolsExecutor) -> None:
    output = executor("try:\n    final_answer(1)\nexcept Exception:\n    pass\nprint('not reached')")
    assert (output.output, output.is_final_answer, output.logs) == (1, True, "")


def test_the_page_runs() -> None:
    names = run_page("smolagents")
    assert names["answer"] == 42


# -- what tests/test_remote_executors.py of smolagents asks of its executors ------------------------------------------


def test_state_persistence(executor: AgentToolsExecutor) -> None:
    executor("import numpy as np; a = 2")
    assert executor("print(np.sqrt(a))").logs.startswith("1.41421")


def test_execute_output(executor: AgentToolsExecutor) -> None:
    output = executor('final_answer("This is the final answer")')
    assert output.output == "This is the final answer"
    assert output.is_final_answer


def test_execute_multiline_output(executor: AgentToolsExecutor) -> None:
    output = executor('result = "This is the final answer"\nfinal_answer(result)')
    assert output.output == "This is the final answer"


def test_execute_image_output(executor: AgentToolsExecutor) -> None:
    output = executor('from PIL import Image\nfinal_answer(Image.new("RGB", (60, 30), (255, 0, 0)))')
    assert isinstance(output.output, Image.Image)
    assert output.output.size == (60, 30)


def test_syntax_error_handling(executor: AgentToolsExecutor) -> None:
    with pytest.raises(AgentError, match="SyntaxError"):
        executor('print("Missing Parenthesis')


def test_send_variables(executor: AgentToolsExecutor) -> None:
    executor.send_variables({"k": [1, {"a": None}], "t": (1, 2)})
    assert executor("print(k, t)").logs.strip() == "[1, {'a': None}] (1, 2)"


@pytest.mark.parametrize("answer", ["None", "[1, 'a', None]", "{'a': (1, 2)}", "b'bytes'", "1e300", "{1, 2}"])
def test_final_answers_of_many_kinds(executor: AgentToolsExecutor, answer: str) -> None:
    assert executor(f"final_answer({answer})").output == eval(answer)


def test_cleanup_ends_the_sandbox(executor: AgentToolsExecutor) -> None:
    executor("1")
    assert executor.sandbox.is_alive
    executor.cleanup()
    executor.cleanup()
    assert not executor.sandbox.is_alive
