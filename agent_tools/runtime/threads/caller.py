"""The caller on whose behalf a thread works: the task of an event loop that awaits it, or else the thread itself."""

from __future__ import annotations

import threading
from contextvars import ContextVar

awaiting: ContextVar[object] = ContextVar("awaiting", default=None)
"""The task that awaits what this thread does; None where nobody does."""


def caller() -> object:
    """Return what is the same for all that one caller does, and for nobody else at the same time."""
    return awaiting.get() or threading.current_thread()
