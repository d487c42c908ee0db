"""The tools that count as tools that run code."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.results.execution import Execution, Output
from agent_tools.tools import BaseTool, CodeInterpreter, FileAccess
from agent_tools.tools.code_tool import CodeTool


class WithNamesOnly(BaseTool):
    """Has methods of these names, which mean something else."""

    def stream(self, topic: str) -> None: ...

    def markdown(self) -> str:
        return ""

    def cancel(self, order: int) -> None: ...


class WithMethods(BaseTool):
    """Has the methods, and was written before there was a class to inherit from."""

    def stream(
        self, params: Any, files: Any = None, timeout: float | None = None, cancelled: Any = None
    ) -> Generator[Output, None, Execution]:
        raise NotImplementedError

    def markdown(self, execution: Execution) -> str:
        return ""

    def cancel(self, cancelled: Any) -> None: ...


class NoTool:
    stream, markdown, cancel = WithMethods.stream, WithMethods.markdown, WithMethods.cancel


@pytest.mark.parametrize(
    ("cls", "runs_code"),
    [
        (CodeInterpreter, True),
        (ContainerTool, True),
        (WithMethods, True),
        (WithNamesOnly, False),
        (FileAccess, False),
        (NoTool, False),
    ],
)
def test_a_code_tool_is_told_by_its_class_or_by_its_whole_contract(cls: type, runs_code: bool) -> None:
    assert issubclass(cls, CodeTool) is runs_code
