"""This machine, as measurements look at it: how busy it is, and the processes on it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def busy() -> float:
    """Return the processor seconds that this machine has spent so far, whoever used them."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def command(pid: int) -> str:
    """Return a process's command line; '' once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has; 0 once it has ended."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def processes_with(variable: str, value: object) -> list[int]:
    """Return the processes that were started with this variable in their environment, but for this one."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if pid != os.getpid() and f"{variable}={value}\0".encode() in environment:
                found.append(pid)
    return found
