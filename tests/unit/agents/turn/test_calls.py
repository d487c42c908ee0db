"""The code of a call is read as the tool itself reads it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from agent_tools.agents.turn.tool_call import code_reader
from agent_tools.errors import InvalidParams
from agent_tools.results.execution import Execution, Output
from agent_tools.tools import BaseTool, CodeInterpreter
from agent_tools.tools.code_tool import CodeTool


class NeverRun(CodeTool):
    """A code tool whose code no test runs."""

    name = "plain"
    description = "Runs code."
    parameters: Any = ()

    def call(self, params: Any, **kwargs: Any) -> str:
        return ""

    def stream(
        self, params: Any, files: Any = None, timeout: float | None = None, cancelled: Any = None
    ) -> Generator[Output, None, Execution]:
        raise NotImplementedError

    def markdown(self, execution: Execution) -> str:
        return ""

    def cancel(self, cancelled: Any) -> None: ...


class Shouting(NeverRun):
    """Reads code in a way of its own."""

    name = "shouting"

    def read_code(self, params: object) -> str:
        return str(params).upper()


class NoCode(BaseTool):
    name = "no_code"
    description = "Reads code, and runs none."
    parameters: Any = ()

    def call(self, params: Any, **kwargs: Any) -> str:
        return ""

    def read_code(self, params: object) -> str:
        return str(params)


def test_a_tool_s_own_way_and_limits_go_before_the_usual_ones() -> None:
    own, usual = code_reader(Shouting()), code_reader(NeverRun())
    assert own is not None
    assert usual is not None
    assert own('{"code": "x"}') == '{"CODE": "X"}'
    assert usual('{"code": "x"}') == "x"
    with CodeInterpreter({"limits": {"max_code_bytes": 3}}) as tool:
        limited = code_reader(tool)
        assert limited is not None
        with pytest.raises(InvalidParams, match="max_code_bytes"):
            limited("1 + 1")


def test_a_tool_that_runs_no_code_has_none_to_be_read() -> None:
    assert code_reader(NoCode()) is None
    assert code_reader(None) is None
