"""The contract of a tool that runs code and shows its outputs while it runs."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, Protocol, runtime_checkable

from agent_tools.results.execution import Execution, Output
from agent_tools.tools.base import BaseTool


class CodeTool(BaseTool):
    """A tool that runs code; `CodeInterpreter` is one.

    An agent shows the outputs of subclasses while the code runs; the methods of other tools are not looked at.
    """

    @abstractmethod
    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, and return the whole execution."""

    @abstractmethod
    def markdown(self, execution: Execution) -> str:
        """Return the execution as the model is to read it."""

    @abstractmethod
    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event. For any thread."""


@runtime_checkable
class ReadsCode(Protocol):
    """A code tool that reads the code of a call in a way, or with limits, of its own."""

    def read_code(self, params: object) -> str:
        """Return the code of a call.

        Raises:
            InvalidParams: there is none, or none that may run.
        """
        ...
