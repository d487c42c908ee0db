"""The last failures of a gateway, for its operator: whose, of what kind, and why. They are in memory only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.text import one_line

MAX_FAILURES = 200
MAX_OF_KEY = 20  # so that one key's failures leave those of others in the list
MAX_REASON = 200  # characters
LEAST_STATUS = 429  # of requests that fail; those below are the client's errors


@dataclass(frozen=True)
class RecentFailure:
    """A failure that occurred `count` times, the last time `at` (seconds since 1970), in this container."""

    at: float
    count: int
    container: str


_Kind = tuple[str, str, str, str]  # key, user, kind, reason


class RecentFailures:
    """The failures since the start of a gateway, each kind once. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[_Kind, RecentFailure] = {}  # the latest last
        self._noted: WeakSet[ApiError] = WeakSet()  # a job's failure is raised by its request, too

    def record(self, kind: str, reason: str, key: str, user: str = "", container: str = "") -> None:
        """Note a failure of a key, or of a user."""
        place = key, user, kind, one_line(reason)[:MAX_REASON]
        with self._lock:
            before = self._kept.pop(place, None)
            self._kept[place] = RecentFailure(self._clock(), before.count + 1 if before else 1, container)
            of_key = [each for each in self._kept if each[0] == key]
            if len(of_key) > MAX_OF_KEY or len(self._kept) > MAX_FAILURES:
                del self._kept[of_key[0] if len(of_key) > MAX_OF_KEY else next(iter(self._kept))]

    def refused(self, error: ApiError, key: str, user: str = "") -> None:
        """Note a failed request, once, unless the client is to blame."""
        with self._lock:
            is_new = error not in self._noted
            self._noted.add(error)
        if is_new and error.status >= LEAST_STATUS:
            self.record(str(error.status), error.message, key, user)

    def all(self) -> list[dict[str, object]]:
        """Return the failures as JSON, the latest first."""
        with self._lock:
            kept = list(self._kept.items())
        names = ("key", "user", "kind", "reason")
        return [{**dict(zip(names, place, strict=True)), **vars(each)} for place, each in reversed(kept)]
