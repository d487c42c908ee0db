"""The lock by which one caller at a time runs code in a session: the task that awaits a run, or the thread."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from agent_tools.errors import SessionBusy

LOOK_SECONDS = 0.05  # between two looks of a waiting caller whether it was cancelled

_awaiting: ContextVar[tuple[int, object]] = ContextVar("awaiting", default=(0, None))


def work_for(task: object) -> None:
    """Make a task, which awaits what this thread does in its present context, the caller of that work."""
    _awaiting.set((threading.get_ident(), task))


def caller() -> object:
    """Return an object that is the same for all work of one caller, and for no other caller at the same time."""
    thread, task = _awaiting.get()
    return task if thread == threading.get_ident() else threading.current_thread()  # a context may be copied elsewhere


class RunLock:
    """Acquired and released by one caller. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object = None

    @property
    def is_locked(self) -> bool:
        """True while a caller has it."""
        return self._lock.locked()

    def acquire(self, cancelled: threading.Event | None) -> bool:
        """Wait for the lock; return False, without it, once `cancelled` is set. Raises SessionBusy."""
        self.refuse_owner()
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            if cancelled and cancelled.is_set():
                return False
        self._owner = caller()
        return True

    def acquire_now(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Let another caller acquire it."""
        self._owner = None
        self._lock.release()

    def refuse_owner(self) -> None:
        """Raise SessionBusy if this caller has the lock: it would wait for itself."""
        if self._lock.locked() and self._owner == caller():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")
