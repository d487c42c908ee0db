from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from agent_tools.models import get_chat_model
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Conversation,
    Delta,
    Finish,
    TextDelta,
    Usage,
)
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer, check_model, check_tool
from agent_tools.tools import CodeInterpreter
from agent_tools.tools.base import BaseTool
from agent_tools.tools.file_access import FileAccess
from agent_tools.tools.function_tool import FunctionTool

HELLO = [{"role": "user", "content": "hello"}]
CALL = ScriptedReply("Look:", calls=[ScriptedCall("add", {"a": 1}), ScriptedCall("add", {"a": 2})])


class Told:
    """A model that says what it is told to."""

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = deltas

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        yield from self.deltas


def test_a_scripted_model_keeps_the_contract() -> None:
    deltas = check_model(ScriptedModel([CALL, CALL]), HELLO)
    assert sum(isinstance(delta, CallComplete) for delta in deltas) == 2


def test_a_model_on_a_server_keeps_the_contract() -> None:
    with ScriptedServer({"m": [CALL, CALL]}) as server:
        model = get_chat_model({"model": "m", "model_server": server.base_url})
        check_model(model, HELLO)
        model.close()  # type: ignore[attr-defined]


BROKEN = {
    "no Finish": [TextDelta("a")],
    "2 Finish": [Finish("stop"), Finish("stop")],
    "more than one Usage": [Usage(), Usage(), Finish("stop")],
    "after Finish": [Finish("stop"), TextDelta("late")],
    "before it begins": [ArgumentsDelta(0, "{}"), Finish("stop")],
    "begins twice": [CallStarted(0, "i", "f"), CallStarted(0, "i", "f"), Finish("stop")],
    "has no id": [CallStarted(0, "", "f"), Finish("stop")],
    "never complete": [CallStarted(0, "i", "f"), Finish("stop")],
    "not its arguments": [CallStarted(0, "i", "f"), CallComplete(0, "i", "f", "{}"), Finish("stop")],
    "changed its name": [CallStarted(0, "i", "f"), CallComplete(0, "i", "g", ""), Finish("stop")],
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_model_that_breaks_the_contract_is_told_where(fault: str) -> None:
    with pytest.raises(AssertionError, match="0 Finish" if fault == "no Finish" else fault):
        check_model(Told(*BROKEN[fault]), HELLO)


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def test_our_tools_keep_the_contract(process_runtime: Runtime, work_dir: Any) -> None:
    (work_dir / "data.csv").write_text("a,b\n1,2\n")
    assert check_tool(FunctionTool(double), {"number": 2}, same=lambda one, other: one == other)
    assert check_tool(FileAccess({"root": str(work_dir)}), {"path": "data.csv"}, '{"path": "/etc/passwd"}')
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=process_runtime) as tool:
        assert "4" in check_tool(tool, {"code": "print(2 + 2)"}, '{"cod": "1"}')


class Silent(BaseTool):
    name = "silent"
    description = "Takes anything."
    parameters = [{"name": "x", "type": "string"}]  # noqa: RUF012

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        return object() if kwargs else "ok"


def test_a_tool_that_breaks_the_contract_is_told_where() -> None:
    with pytest.raises(AssertionError, match="cannot be told to a model"):
        check_tool(Silent(), {"x": "1"})
