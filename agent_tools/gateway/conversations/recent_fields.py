"""Fields that only model servers know, of items that are not stored, for clients that send such items again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from agent_tools.gateway.conversations.recent_values import RecentValues
from agent_tools.limits import MIB

LIFETIME = 3_600.0  # seconds
MAX_CHARS = 64 * MIB  # of all keys and fields


class RecentFields:
    """Fields as JSON, by owner and key. Thread-safe."""

    def __init__(self, most: int = MAX_CHARS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known = RecentValues[str, tuple[float, str]](most)

    def record(self, owner: str, fields: Mapping[str, str]) -> None:
        """Remember fields; if there are too many, the oldest of the owner that has most are forgotten."""
        with self._lock:
            for key, text in fields.items():
                self._known.add(owner, key, (self._clock(), text), len(key) + len(text))

    def find(self, owner: str, keys: Iterable[str]) -> dict[str, str]:
        """Return the fields that are known by these keys."""
        with self._lock:
            return {key: found[1] for key in keys if (found := self._known.get(owner, key))}

    def sweep(self) -> int:
        """Forget fields that are too old; return 0, since that cannot fail."""
        with self._lock:
            old = self._clock() - LIFETIME
            self._known.drop_oldest(lambda value: value[0] < old)
        return 0
