"""DSPy: RLM and the protocol of interpreters, on ours. DSPy publishes no suite for interpreters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreter, CodeInterpreterError, FinalOutput
from dspy.utils import DummyLM

from agent_tools.integrations.dspy import AgentToolsInterpreter
from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, interrupting, run_page


def scripted(*codes: str) -> DummyLM:
    return DummyLM([{"reasoning": "so", "code": f"```python\n{code}\n```"} for code in codes])


def look(key: str) -> int:
    """Look up."""
    return {"a": 21}[key]


@pytest.fixture
def interpreter(cfg: dict[str, Any]) -> Iterator[AgentToolsInterpreter]:
    made = AgentToolsInterpreter({"look": look}, cfg=cfg)
    yield made
    made.shutdown()


def test_rlm_reads_a_large_context_by_code_that_calls_a_tool(cfg: dict[str, Any]) -> None:
    codes = (
        "v = look('a')\nprint(v, len(context))",
        f"{PICTURE.replace('x', 'v')}",
        f"x = 1\n{FILE}\nSUBMIT(answer=v * 2)",
    )
    with dspy.context(lm=scripted(*codes), interpreter_factory=lambda: AgentToolsInterpreter(cfg=cfg)):
        out = dspy.RLM("context -> answer: int", tools=[look], max_iters=5)(context="x" * 20_000_000)
    assert out.answer == 42


def test_state_tools_and_submissions(interpreter: AgentToolsInterpreter) -> None:
    assert isinstance(interpreter, CodeInterpreter)
    interpreter.start()
    interpreter.start()
    assert interpreter.execute("x = look('a') + n\nprint(x)", {"n": 21}) == "42\n"
    assert interpreter.execute("import numpy as np; int(np.arange(3).sum()) + x") == "45"
    assert interpreter.execute("y = 1") is None
    assert interpreter.execute("SUBMIT(x)") == FinalOutput(42)
    interpreter.tools["twice"] = lambda value: value * 2
    interpreter.output_fields = [{"name": "a"}, {"name": "b"}]
    assert interpreter.execute("try:\n    SUBMIT(x, b=twice(value=x))\nexcept Exception:\n    pass") == FinalOutput(
        {"a": 42, "b": 84}
    )


def test_errors_are_told_apart(interpreter: AgentToolsInterpreter) -> None:
    with pytest.raises(SyntaxError, match="Invalid Python syntax"):
        interpreter.execute("x =")
    with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
        interpreter.execute("1 / 0")
    with pytest.raises(CodeExecutionError, match="KeyError"):
        interpreter.execute("look(key='b')")
    with pytest.raises(CodeInterpreterError, match="no JSON value") as caught:
        interpreter.execute("1", {"n": object()})
    assert not isinstance(caught.value, CodeExecutionError)


@pytest.mark.stops
def test_an_interrupted_execution_keeps_the_variables(interpreter: AgentToolsInterpreter) -> None:
    with interrupting(interpreter.sandbox), pytest.raises(CodeExecutionError, match="KeyboardInterrupt"):
        interpreter.execute(f"x = 42\n{ENDLESS}")
    assert interpreter.execute(AFTER) == "43"


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told(
    interpreter: AgentToolsInterpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = Execution((Restarted("it died"), Stream("stdout", "a"), Omitted("5 characters", is_text=True)))
    monkeypatch.setattr(interpreter.sandbox, "run_code", lambda _: execution)
    told = interpreter.execute("1")
    assert all(text in told for text in ("it died", "a\n", "5 characters left out"))


def test_the_page_runs() -> None:
    assert run_page("dspy")["out"].answer == 42
