"""The lock by which one caller at a time runs code in a session: the task that awaits a run, or the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

from agent_tools.errors import SessionBusy

LOOK_SECONDS = 0.05  # between two looks of a waiting caller whether it was cancelled
HasLeft = Callable[[], bool]
"""Tells whether a caller has left the stream that it read: nobody will take its next output."""


def stays() -> bool:
    """Tell that a caller has not left."""
    return False


LEFT_SECONDS = 5.0  # for the end of a stream whose sandbox is removed
_awaiting: ContextVar[tuple[int, object, HasLeft]] = ContextVar("awaiting", default=(0, None, stays))


def work_for(task: object, has_left: HasLeft = stays) -> None:
    """Make a task, which awaits what this thread does in its present context, the caller of that work."""
    _awaiting.set((threading.get_ident(), task, has_left))


def caller() -> object:
    """Return an object that is the same for all work of one caller, and for no other caller at the same time."""
    return _caller()[0]


def _caller() -> tuple[object, HasLeft]:
    thread, task, has_left = _awaiting.get()
    if thread == threading.get_ident():
        return task, has_left
    return threading.current_thread(), stays  # a context may be copied elsewhere


class RunLock:
    """Acquired and released by one caller. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object = None
        self._has_left: HasLeft = stays

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
        self._owner, self._has_left = _caller()
        return True

    def acquire_now(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        return self._lock.acquire(blocking=False)

    def acquire_left(self) -> bool:
        """Wait a while for the lock if the reader of its stream has left, and this is not the event loop's thread."""
        is_left = self._has_left() and caller() is not threading.current_thread()
        return is_left and self._lock.acquire(timeout=LEFT_SECONDS)

    def release(self) -> None:
        """Let another caller acquire it."""
        self._owner = None
        self._lock.release()

    def refuse_owner(self) -> None:
        """Raise SessionBusy if this caller has the lock, in a stream that it still reads: it would wait for itself."""
        if self._lock.locked() and self._owner == caller() and not self._has_left():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")
