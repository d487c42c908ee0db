"""Sandboxes that a caller has reserved: made ahead, while he still thinks, and each taken by one session of his.

A few threads make them, as many as may start at once; who takes one that is still being made waits for it. A
reservation lives by a lease, as a session does, and ends when all of it is taken.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from agent_tools.fleet.crossing import RemoteSpec
from agent_tools.fleet.host.held import HeldSession
from agent_tools.fleet.limits import STARTS_AT_ONCE
from agent_tools.machine.background import begun

log = logging.getLogger("agent_tools.fleet")


class Reservation:
    """So many sandboxes of one kind. `make` gives one that runs, or raises; `give_back` frees a place of the host."""

    def __init__(
        self,
        spec: RemoteSpec,
        count: int,
        make: Callable[[RemoteSpec], HeldSession],
        give_back: Callable[[int], object],
    ) -> None:
        self.kind = spec.kind
        self.expires = float("inf")
        self._make, self._give_back = make, give_back
        self._to_make = count
        self._being_made = 0
        self._ready: deque[HeldSession] = deque()
        self._is_over = False
        self._changed = threading.Condition()
        self._threads = [begun(self._work, "agent-tools-reserve") for _ in range(min(count, STARTS_AT_ONCE))]

    @property
    def ready(self) -> int:
        """Sandboxes that nobody has taken yet."""
        return len(self._ready)

    @property
    def left(self) -> int:
        """Sandboxes that can be taken, those included that are not made yet."""
        with self._changed:
            return self._to_make + self._being_made + len(self._ready)

    def take(self, seconds: float) -> HeldSession | None:
        """Return one of them, waited for if it is still being made; None if there is none left."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or not (self._to_make or self._being_made), seconds)
            return self._ready.popleft() if self._ready else None

    def end(self) -> None:
        """Make no more, close those that nobody took, and wait for those that are still being made."""
        with self._changed:
            self._is_over = True
            freed, self._to_make = self._to_make + len(self._ready), 0
            unused = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        try:
            for held in unused:
                _close(held)
        finally:
            self._give_back(freed)
        for thread in filter(None, self._threads):
            thread.join()

    def _work(self) -> None:
        while self._begin_one():
            made = None
            try:
                made = self._make(self.kind)
            except Exception as exc:  # noqa: BLE001  (a session that asks starts cold, and is told)
                log.info("a sandbox could not be made ahead: %r", exc)
            self._keep(made)

    def _begin_one(self) -> bool:
        with self._changed:
            if not self._to_make:
                return False
            self._to_make -= 1
            self._being_made += 1
            return True

    def _keep(self, made: HeldSession | None) -> None:
        with self._changed:
            self._being_made -= 1
            is_wanted = made is not None and not self._is_over
            if made is not None and is_wanted:
                self._ready.append(made)
            self._changed.notify_all()
        if not is_wanted:
            if made:
                _close(made)
            self._give_back(1)


def _close(held: HeldSession) -> None:
    """Close one that nobody took; what that fails at is no reason to keep the others, or their slots."""
    try:
        held.close()
    except Exception as exc:  # noqa: BLE001  (whatever it is: its slot is to be given back)
        log.warning("a sandbox made ahead could not be closed: %r", exc)
