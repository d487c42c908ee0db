"""Messages that nobody waits for, kept where no message can be sent now, and sent a little later, in their order.

They are the orders of a run (call_relay.py): one that never arrived would leave the code waiting until its time is up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from agent_tools.fleet.limits import MAX_UNSENT_MESSAGES, SEND_SECONDS
from agent_tools.machine.background import begun

log = logging.getLogger("agent_tools.fleet")

Send = Callable[..., bool]
"""Sends a message; False where there is no room for it now. A host that is gone is no error."""
LOOK_SECONDS = 0.05  # between two tries


class Outbox:
    """Of one host. Thread-safe. What finds no room for `patience` seconds is dropped, and a warning says so."""

    def __init__(self, send: Send, most: int = MAX_UNSENT_MESSAGES, patience: float = SEND_SECONDS) -> None:
        self._send, self._most, self._patience = send, most, patience
        self._unsent: deque[tuple[Any, ...]] = deque()
        self._changed = threading.Condition()
        self._is_sending = False

    def tell(self, *message: Any) -> None:
        """Send a message, now or later; who sends more than may be kept waits for room."""
        with self._changed:
            if not self._unsent and self._send(*message):
                return
            self._changed.wait_for(lambda: len(self._unsent) < self._most)
            self._unsent.append(message)
            if self._is_sending:
                return
            self._is_sending = True
        if begun(self._send_all, "agent-tools-orders") is None:
            self._send_all()

    def _send_all(self) -> None:
        until = time.monotonic() + self._patience
        while not self._is_done(time.monotonic() > until):
            time.sleep(LOOK_SECONDS)

    def _is_done(self, is_late: bool) -> bool:
        """Send what can be sent, and drop what was not sent in time; return whether nothing is left."""
        with self._changed:
            while self._unsent and self._send(*self._unsent[0]):
                self._unsent.popleft()
            if is_late and self._unsent:
                log.warning("%d messages found no room at their host and were dropped", len(self._unsent))
                self._unsent.clear()
            self._is_sending = bool(self._unsent)
            self._changed.notify_all()
            return not self._is_sending
