"""The event log of a job, the bridge from its thread to the event loop: the thread appends, readers follow.

An event is encoded when it is appended, so later changes do not show. The log is limited in size: the writer checks
`is_full`.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.models.base import JsonObject


@dataclass(frozen=True)
class Logged:
    """One event: its type and its JSON."""

    kind: str
    data: bytes

    @property
    def value(self) -> JsonObject:
        """The event, parsed."""
        found: JsonObject = json.loads(self.data)
        return found


def encoded(event: Mapping[str, Any]) -> Logged:
    """Encode an event as it is now."""
    return Logged(str(event.get("type", "")), json.dumps(event, separators=(",", ":")).encode())


def packed_events(events: Iterable[Logged]) -> bytes:
    """Pack events for the store: a line for the type of each, and a line for its JSON."""
    return zlib.compress(b"".join(b"%s\n%s\n" % (event.kind.encode(), event.data) for event in events))


def unpacked_events(data: bytes) -> list[Logged]:
    """Unpack events from the store."""
    lines = iter(zlib.decompress(data).splitlines())
    return [Logged(kind.decode(), line) for kind, line in zip(lines, lines)]


class EventLog:
    """The events of a job. `append` and `close` are for any thread, all other methods for the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._max_bytes = max_bytes
        self.size = 0  # bytes
        self.events: list[Logged] = []
        self.is_closed = False

    def append(self, event: Mapping[str, Any]) -> None:
        """Add an event, even if the log is full."""
        logged = encoded(event)
        self.size += len(logged.data)
        self.events.append(logged)
        self._wake()

    @property
    def is_full(self) -> bool:
        """The log has reached its limit; only events that end the job should follow."""
        return self.size >= self._max_bytes

    @classmethod
    def of(cls, events: Iterable[Logged]) -> EventLog:
        """Return a closed log of these events."""
        log = cls(0)
        log.events, log.is_closed = list(events), True
        return log

    def close(self) -> None:
        """Close the log: no more events come."""
        self.is_closed = True
        self._wake()

    async def after(self, seen: int) -> list[Logged]:
        """Wait for events after the first `seen`, and return them; an empty list once the log is closed."""
        while len(self.events) <= seen and not self.is_closed:
            await self._changed.wait()
        return self.events[seen:]

    async def closed(self) -> None:
        """Wait until the log is closed."""
        while not self.is_closed:
            await self._changed.wait()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._notify)
        except RuntimeError:  # the loop is closed, and all readers with it
            return

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
