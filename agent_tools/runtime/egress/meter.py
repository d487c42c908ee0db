"""The limits of one connection: bytes each way, duration, and idle time."""

from __future__ import annotations

import asyncio
import time

from agent_tools.limits import EgressLimits
from agent_tools.runtime.egress.journal import JournalEntry
from agent_tools.runtime.egress.refusals import EgressRefused


class Meter:
    """Counts the bytes of a connection, in its record."""

    def __init__(self, entry: JournalEntry, limits: EgressLimits) -> None:
        self.entry = entry
        self._limits = limits
        self._total_in = self._total_out = 0
        self._latest = time.monotonic()

    def send(self, size: int) -> None:
        """Count bytes that are about to be sent.

        Raises:
            EgressRefused: they are too many.
        """
        self._latest = time.monotonic()
        self._total_out += size
        if self._total_out > self._limits.max_sent:
            raise _cut(f"more than {self._limits.max_sent:,} bytes out (max_sent)")
        self.entry.sent += size

    def receive(self, size: int) -> None:
        """Count received bytes.

        Raises:
            EgressRefused: they are too many.
        """
        self._latest = time.monotonic()
        self._total_in += size
        if self._total_in > self._limits.max_received:
            raise _cut(f"more than {self._limits.max_received:,} bytes in (max_received)")
        self.entry.received += size

    async def watch(self) -> None:
        """Wait until the connection has lasted or been idle for too long, then raise EgressRefused."""
        end = time.monotonic() + self._limits.max_seconds
        while True:
            now, idle = time.monotonic(), self._latest + self._limits.idle_timeout
            if now >= end:
                raise _cut(f"longer than {self._limits.max_seconds:g} s (max_seconds)")
            if now >= idle:
                raise _cut(f"{self._limits.idle_timeout:g} s without a byte (idle_timeout)")
            await asyncio.sleep(min(end, idle) - now)


def _cut(why: str) -> EgressRefused:
    return EgressRefused(504, why, f"The connection was cut: {why}.")
