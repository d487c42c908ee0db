"""The end of a command, in the words of a shell."""

from __future__ import annotations

import errno
import os
import signal

from agent_tools.command import NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, TIMED_OUT
from agent_tools.guest.wire.commands import Ended, Spec


def exit_code(ended: Ended | None, *, is_overdue: bool) -> int:
    """Return the exit code of a command; None: whoever ran it hung up."""
    if is_overdue or (ended and ended.timed_out):
        return TIMED_OUT
    if ended is None:
        return SIGNALLED + signal.SIGKILL
    if ended.how == "no program":
        return NOT_FOUND if ended.number == errno.ENOENT else NOT_EXECUTABLE
    return {"code": ended.number, "signal": SIGNALLED + ended.number, "no folder": NOT_FOUND}[ended.how]


def complaint(spec: Spec, ended: Ended | None) -> str:
    """Return the line that says why a command could not be run; '' for one that ran."""
    if ended is None or ended.how in ("code", "signal"):
        return ""
    program = spec.argv if isinstance(spec.argv, str) else spec.argv[0]
    what = f"cwd {spec.cwd}" if ended.how == "no folder" else program
    return f"{what}: {os.strerror(ended.number)}\n"
