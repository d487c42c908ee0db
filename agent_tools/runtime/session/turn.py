"""The turn of a session: what it does, it does for one caller at a time."""

from __future__ import annotations

import threading

from agent_tools.errors import SessionBusy
from agent_tools.runtime.threads.caller import caller

LOOK_SECONDS = 0.05  # how often one that waits looks whether it was cancelled


class Turn:
    """Taken by one caller, a task or a thread, and given up by it. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object = None

    @property
    def is_taken(self) -> bool:
        """True while somebody has it."""
        return self._lock.locked()

    def take(self, cancelled: threading.Event | None) -> bool:
        """Wait for it; False, without it, once `cancelled` is set.

        Raises:
            SessionBusy: this caller has it.
        """
        self.refuse_holder()
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            if cancelled and cancelled.is_set():
                return False
        self._holder = caller()
        return True

    def refuse_holder(self) -> None:
        """Refuse the one who has it.

        Raises:
            SessionBusy: this caller has it.
        """
        if self._lock.locked() and self._holder == caller():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")

    def take_now(self) -> bool:
        """Take it if nobody has it; return whether it is taken."""
        return self._lock.acquire(blocking=False)

    def give_up(self) -> None:
        """Let another one have it."""
        self._holder = None
        self._lock.release()
