"""Waits for what another thread or process does."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE = 30.0  # seconds; a busy machine is slow, and whatever never happens fails in the end


def until(find: Callable[[], Found], seconds: float = PATIENCE) -> Found:
    """Wait until something is found, or is so; return it. It fails the test if that does not happen."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def processes_with(variable: str, value: object) -> list[int]:
    """Return the processes that were started with this variable in their environment, but for this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found += [int(pid)] if f"{variable}={value}".encode() in variables and int(pid) != os.getpid() else []
    return found
