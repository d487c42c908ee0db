"""The contract of a tool that runs code and shows its outputs while it runs."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from agent_tools.code_reader import read_params
from agent_tools.limits import Limits
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

    def read_code(self, params: object) -> str:
        """Return the code that a call with these `params` runs.

        Raises:
            InvalidParams: there is no code, or it is longer than `max_code_bytes`.
        """
        return read_params(params, Limits()).code

    @abstractmethod
    def markdown(self, execution: Execution) -> str:
        """Return the execution as text for the model."""

    @abstractmethod
    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event. For any thread."""
