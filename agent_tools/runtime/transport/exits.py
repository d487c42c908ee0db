"""What PID 1 says of a kernel's end, as sentences."""

from __future__ import annotations

import signal

from agent_tools.errors import KernelDied
from agent_tools.settings import GIB
from agent_tools.text import neutralise

KILLED = f"signal {int(signal.SIGKILL)}"  # as PID 1 says it


def describe_exit(how: str, memory: int) -> str:
    """A sentence for PID 1's `code <n>` or `signal <n>`, with ` oom` when the memory limit was met."""
    words = how.split()
    if "oom" in words and words[:1] == ["signal"]:
        return f"it was killed at its memory limit of {memory / GIB:g} GiB"
    if words[:1] == ["signal"] and words[1:2] and words[1].isdigit():
        return f"it was killed by {_signal_name(int(words[1]))}"
    code = words[1] if len(words) > 1 and words[1].lstrip("-").isdigit() else "?"
    return f"its process exited with code {code}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def refuse_end(words: list[str], generation: int) -> None:
    """Go through PID 1's words while a kernel starts.

    Raises:
        KernelDied: they say that it never will be ready.
    """
    match words:
        case ["failed", _, traceback]:
            raise KernelDied(f"it failed to start: {neutralise(traceback)}")
        case ["exit", number, how] if number == str(generation):
            raise KernelDied(f"it ended at its start ({how})")
        case []:
            raise KernelDied("the sandbox ended before its kernel was ready")
