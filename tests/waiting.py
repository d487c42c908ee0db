"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
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
