"""The end of a kernel as a sentence, made only here."""

from __future__ import annotations

import signal

from agent_tools.guest.wire.words import Exit
from agent_tools.limits import GIB, MIB
from agent_tools.runtime.kernel.escalation import Ended, Gone, Silent, Why

USE_LESS = "read less at once: usecols, dtype, chunksize"
CLEAR = "delete them by a command, or reset the sandbox"
FULL = 0.125  # of the memory: files of a temporary folder that take more are named as a cause


def describe(ended: Ended, memory: int, lost: str = "") -> str:
    """Return why a kernel ended, as a clause without its full stop.

    `memory` is its limit in bytes; `lost` says how the way to its sandbox broke, if it did.
    """
    if ended.why in (Why.BROKE, Why.CONDEMNED) and ended.detail:
        return f"it sent {ended.detail}" if ended.why is Why.BROKE else ended.detail
    if ended.why in (Why.OVERDUE, Why.DEAF, Why.CLOSED):
        return str(ended.why.value)
    match ended.how:
        case Exit() as exit_:
            return describe_exit(exit_, memory)
        case Gone():
            return lost or "the sandbox ended"
        case Silent():
            return "the sandbox stopped answering"
        case None:
            return "it ended"


def describe_exit(ended: Exit, memory: int) -> str:
    """Return how a kernel's process ended, as a clause."""
    if ended.signal and ended.oom:
        limit = f"it was killed at its memory limit of {memory / GIB:g} GiB"
        if ended.mib * MIB > memory * FULL:
            number = f"{ended.files:,} " if ended.files else ""  # gVisor counts none
            return f"{limit}, of which {number}files in {ended.folder} take {ended.mib:,} MiB ({CLEAR})"
        return f"{limit} ({USE_LESS})"
    if ended.signal:
        return f"it was killed by {_signal_name(ended.signal)}"
    return f"its process exited with code {ended.code}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
