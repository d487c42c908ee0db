"""The contract of a tool that runs code and shows its outputs while it runs."""

from __future__ import annotations

import inspect
import threading
from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, Protocol, runtime_checkable

from agent_tools.results.execution import Execution, Output
from agent_tools.tools.base import BaseTool


class CodeTool(BaseTool):
    """A tool that runs code; `CodeInterpreter` is one.

    A class says so by inheriting from this one. A `BaseTool` that has all three methods with these parameters counts
    as a subclass, too: tools were recognised by them before this class existed.
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

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        is_like_one = cls is CodeTool and BaseTool in other.__mro__ and all(_takes(other, name) for name in _METHODS)
        return is_like_one or NotImplemented


@runtime_checkable
class ReadsCode(Protocol):
    """A code tool that reads the code of a call in a way, or with limits, of its own."""

    def read_code(self, params: object) -> str:
        """Return the code of a call.

        Raises:
            InvalidParams: there is none, or none that may run.
        """
        ...


_METHODS = {
    "stream": {"params", "files", "timeout", "cancelled"},
    "markdown": {"execution"},
    "cancel": {"cancelled"},
}


def _takes(cls: type, method: str) -> bool:
    """Return whether a class has the method, with all parameters that it is called with."""
    function = getattr(cls, method, None)
    return inspect.isfunction(function) and _METHODS[method] <= inspect.signature(function).parameters.keys()
