"""The contract of a tool that runs commands and shows their output while they run."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, Union

from agent_tools.tools.base import BaseTool

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class CommandText:
    """Text that a command of a call printed; `index` is the command's place in the call."""

    index: int
    stream: StreamName
    text: str


@dataclass(frozen=True)
class CommandEnd:
    """A command of a call that has ended.

    Attributes:
        index: its place in the call.
        exit_code: its own; 128 + n for signal n, 124 if its time was up.
        stdout: the stored part of its stdout: its texts joined.
        stderr: likewise.
        timed_out: True if it was ended at its time limit.
        was_cancelled: True if it was ended because the call was.
    """

    index: int
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    was_cancelled: bool = False


CommandNews = Union[CommandText, CommandEnd]


class CommandTool(BaseTool):
    """A tool that runs the commands of a call, in order or at once."""

    @abstractmethod
    def run(self, params: str, cancelled: threading.Event) -> Generator[CommandNews, None, str]:
        """Run the commands of a call, yield their output and the end of each, and return the answer for the model.

        Once `cancelled` is set and `cancel` was called, nothing runs any longer.

        Raises:
            ToolServiceError: they could not be run.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End the running call. For any thread."""
