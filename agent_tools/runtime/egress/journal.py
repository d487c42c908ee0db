"""The record of a sandbox's connections, for executions and for the log: names and numbers only."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from agent_tools.results.connections import ConnectionStatus, NetworkConnection
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached

log = logging.getLogger("agent_tools.egress")


@dataclass(eq=False)
class JournalEntry:
    """One open connection. `host` is '' until a name was read; sizes are bytes."""

    host: str = ""
    port: int = 0
    received: int = 0
    sent: int = 0
    status: ConnectionStatus = "open"
    reason: str = ""
    started: float = field(default_factory=time.monotonic)
    reported: tuple[int, int] | None = None  # sizes that an earlier execution reported

    def refuse(self, refusal: EgressRefused) -> None:
        """Record why it was not made, or was cut."""
        self.status = "failed" if isinstance(refusal, NotReached) or self.received or self.sent else "refused"
        self.reason = refusal.reason

    def since(self) -> NetworkConnection | None:
        """Return the changes since the last report; None if there are none."""
        before = self.reported or (0, 0)
        received, sent = self.received - before[0], self.sent - before[1]
        if self.reported and not received and not sent and not self.reason:
            return None
        self.reported = (self.received, self.sent)
        duration = time.monotonic() - self.started
        return NetworkConnection(self.host, self.port, self.status, self.reason, received, sent, duration)


class Journal:
    """The connections of one sandbox. Entries are begun and ended in the loop, and taken by any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: list[JournalEntry] = []
        self._over: list[NetworkConnection] = []
        self._left_out = 0
        self.opened = 0  # of this run, or command

    def begin(self) -> JournalEntry:
        """Begin the record of a new connection."""
        entry = JournalEntry()
        with self._lock:
            self.opened += 1
            self._open.append(entry)
        return entry

    def end(self, entry: JournalEntry) -> None:
        """End the record of a connection; the next `take_connections` returns it."""
        entry.status = "closed" if entry.status == "open" else entry.status
        with self._lock:
            self._open.remove(entry)
            found = entry.since()
            if found and len(self._over) < self._most:
                self._over.append(found)
            elif found:
                self._left_out += 1
        log.info(
            "%s:%d %s%s: %d bytes in, %d bytes out",
            *(entry.host or "?", entry.port, entry.status, f" ({entry.reason})" if entry.reason else ""),
            *(entry.received, entry.sent),
        )

    def count_unread(self) -> None:
        """Count a connection that was closed before any byte of it was read."""
        with self._lock:
            self.opened += 1
            self._left_out += 1

    def take_connections(self) -> tuple[tuple[NetworkConnection, ...], int]:
        """Return the connections since the last call, in the order in which they ended, and how many were left out."""
        with self._lock:
            going_on = [found for entry in self._open[: self._most] if (found := entry.since())]
            taken, self._over = (*self._over, *going_on), []
            left_out, self._left_out = self._left_out, 0
        return taken, left_out
