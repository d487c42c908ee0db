"""Results of commands in a sandbox, as values: output, exit code and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], object]
"""Called with the name of the stream and its bytes as they come."""

TIMED_OUT = 124
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128  # plus the number of the signal


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended.

    Attributes:
        exit_code: the command's own; 128 + n for signal n, 124 for a time-out, 127 if there is no such program or
            folder, 126 if the program cannot be run.
        stdout: the bytes it wrote, at most the last `max_output`.
        stderr: likewise.
        timed_out: True if it was killed at its time limit.
        omitted_stdout: bytes of stdout that were left out at the beginning.
        omitted_stderr: likewise.
        duration: seconds from its start to its end, as the host saw it.
        reason: why the sandbox ended it, as a sentence without its full stop; '' if it ended by itself.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    omitted_stdout: int = 0
    omitted_stderr: int = 0
    duration: float = 0.0
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """True if bytes were left out."""
        return bool(self.omitted_stdout or self.omitted_stderr)

    @property
    def output(self) -> str:
        """Both streams as text, stdout first; bytes that are not UTF-8 are replaced."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")

    @property
    def texts(self) -> tuple[str, str]:
        """Stdout and stderr as text. Bytes that are not UTF-8 are replaced; a first line says how much was left out."""
        return _told(self.stdout, self.omitted_stdout), _told(self.stderr, self.omitted_stderr)


def _told(data: bytes, omitted: int) -> str:
    note = f"[{omitted:,} bytes before this are left out]\n" if omitted else ""
    return note + data.decode("utf-8", "replace")


class Cursor(NamedTuple):
    """A position in the output of a command: bytes of each stream since its start."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True)
class CommandOutput:
    """The output of a command from a cursor on.

    Attributes:
        cursor: where to read on.
        omitted: bytes after the given cursor that are no longer kept.
    """

    stdout: bytes
    stderr: bytes
    cursor: Cursor
    omitted: int = 0
