"""The end of a command as a shell reports it."""

from __future__ import annotations

import errno
import os
import signal

from agent_tools.guest.wire.commands import CommandEnded, Spec
from agent_tools.results.commands import NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, TIMED_OUT


def exit_code(ended: CommandEnded | None, *, is_overdue: bool) -> int:
    """Return the exit code of a command; None if the process that ran it closed the socket."""
    if is_overdue or (ended and ended.timed_out):
        return TIMED_OUT
    if ended is None:
        return SIGNALLED + signal.SIGKILL
    if ended.how == "no_program":
        return NOT_FOUND if ended.number == errno.ENOENT else NOT_EXECUTABLE
    return {"code": ended.number, "signal": SIGNALLED + ended.number, "no_folder": NOT_FOUND}[ended.how]


def complaint(spec: Spec, ended: CommandEnded | None) -> str:
    """Return a line that says why a command could not be run; '' if it ran."""
    if ended is None or ended.how in ("code", "signal"):
        return ""
    program = spec.argv if isinstance(spec.argv, str) else spec.argv[0]
    what = f"cwd {spec.cwd}" if ended.how == "no_folder" else program
    return f"{what}: {os.strerror(ended.number)}\n"
