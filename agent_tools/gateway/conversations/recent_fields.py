"""Fields that only model servers know, of items that are not stored, for clients that send such items again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from agent_tools.limits import MIB

LIFETIME = 3_600.0  # seconds
MAX_CHARS = 64 * MIB  # of all keys and fields


class RecentFields:
    """Fields as JSON, by keys that name their owner. Thread-safe."""

    def __init__(self, most: int = MAX_CHARS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()  # with their times, the oldest first
        self._chars = 0

    def record(self, fields: Mapping[str, str]) -> None:
        """Remember fields; the oldest are forgotten if there are too many."""
        with self._lock:
            for key, text in fields.items():
                self._drop(key)
                self._known[key] = self._clock(), text
                self._chars += len(key) + len(text)
            while self._chars > self._most:
                self._drop(next(iter(self._known)))

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the fields that are known by these keys."""
        with self._lock:
            return {key: self._known[key][1] for key in keys if key in self._known}

    def sweep(self) -> int:
        """Forget fields that are too old; return 0, since that cannot fail."""
        with self._lock:
            while self._known and self._clock() - next(iter(self._known.values()))[0] > LIFETIME:
                self._drop(next(iter(self._known)))
        return 0

    def _drop(self, key: str) -> None:
        if known := self._known.pop(key, None):
            self._chars -= len(key) + len(known[1])
