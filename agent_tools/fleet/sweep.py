"""The removal, now and then, of folders that processes of this machine left when they were killed."""

from __future__ import annotations

import logging
import threading

from agent_tools.runtime.files.own_folder import remove_stale_own_folders
from agent_tools.runtime.threads.background import begun

log = logging.getLogger("agent_tools.fleet")


class Sweep:
    """Of one process. Times are seconds of any clock."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._at = seconds, now
        self._lock = threading.Lock()

    def look(self, now: float) -> None:
        """Begin to sweep, in a thread, if the last time is `seconds` ago: a large folder holds up no lease."""
        with self._lock:
            if now - self._at < self._seconds:
                return
            self._at = now
        begun(_sweep, "agent-tools-sweep")


def _sweep() -> None:
    try:
        remove_stale_own_folders()
    except Exception as exc:  # noqa: BLE001  (the next time comes, and nobody else would hear of it)
        log.warning("folders of processes that are gone could not be removed: %r", exc)
