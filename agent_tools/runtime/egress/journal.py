"""The record of a sandbox's connections: what is told of them in executions, and logged as names and numbers."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from agent_tools.errors import AgentToolsError
from agent_tools.results.execution import ConnectionStatus, NetworkConnection

log = logging.getLogger("agent_tools.egress")


@dataclass(eq=False)
class Entry:
    """One connection that goes on. `host` is '' until a name was read; sizes are bytes."""

    host: str = ""
    port: int = 0
    received: int = 0
    sent: int = 0
    status: ConnectionStatus = "open"
    reason: str = ""
    started: float = field(default_factory=time.monotonic)
    told: tuple[int, int] | None = None  # sizes that an earlier execution has

    def refuse(self, refusal: EgressRefused) -> None:
        """Note why it was not made, or was cut."""
        self.status = "failed" if isinstance(refusal, NotReached) or self.received or self.sent else "refused"
        self.reason = refusal.reason

    def since(self) -> NetworkConnection | None:
        """Return what happened since it was last told; None if nothing did."""
        before = self.told or (0, 0)
        received, sent = self.received - before[0], self.sent - before[1]
        if self.told and not received and not sent and not self.reason:
            return None
        self.told = (self.received, self.sent)
        duration = time.monotonic() - self.started
        return NetworkConnection(self.host, self.port, self.status, self.reason, received, sent, duration)


class Journal:
    """The connections of one sandbox. Entries are begun and ended in the loop, and taken by any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: list[Entry] = []
        self._over: list[NetworkConnection] = []
        self._left_out = 0
        self.opened = 0  # since the last taking

    def begin(self) -> Entry:
        """Begin the record of a connection."""
        entry = Entry()
        with self._lock:
            self.opened += 1
            self._open.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """End it; what it was is told in the next taking."""
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
        """Count a connection that was hung up on before anything of it was read."""
        with self._lock:
            self.opened += 1
            self._left_out += 1

    def take(self) -> tuple[tuple[NetworkConnection, ...], int]:
        """Return what happened since the last taking, in the order in which it ended, and how many were left out."""
        with self._lock:
            going_on = [found for entry in self._open[: self._most] if (found := entry.since())]
            taken, self._over = (*self._over, *going_on), []
            left_out, self._left_out, self.opened = self._left_out, 0, 0
        return taken, left_out


# Refusals: why a connection of the code is not made or not carried on, as it is told and as it is recorded.


class EgressRefused(AgentToolsError):
    """A connection is not made, or is cut.

    Attributes:
        status: the HTTP status that says so.
        reason: a few fixed words, for the record.
        told: one sentence for whoever wrote the code; it names nothing that the code did not.
    """

    def __init__(self, status: int, reason: str, told: str) -> None:
        super().__init__(told)
        self.status = status
        self.reason = reason
        self.told = told


class NotReached(EgressRefused):
    """A listed host could not be reached, or broke off."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(502, reason, told)
