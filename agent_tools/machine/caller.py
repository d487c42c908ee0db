"""The caller on whose behalf a thread works: the task of an event loop that awaits it, or else the thread itself."""

from __future__ import annotations

import threading
from contextvars import ContextVar

_awaiting: ContextVar[tuple[int, object]] = ContextVar("awaiting", default=(0, None))


def work_for(task: object) -> None:
    """Let what this thread does from now on, in its present context, be done for a task that awaits it."""
    _awaiting.set((threading.get_ident(), task))


def caller() -> object:
    """Return what is the same for all that one caller does, and for nobody else at the same time."""
    thread, task = _awaiting.get()
    return task if thread == threading.get_ident() else threading.current_thread()  # a context may be copied elsewhere
