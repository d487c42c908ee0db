"""The room for sandboxes: how many run code at once, and how many are kept beside them with their variables."""

from __future__ import annotations

from collections.abc import Callable

from agent_tools.containers.config import ContainersConfig
from agent_tools.runtime.host.machine import available_memory


class Room:
    """Two numbers of sandboxes. `available` returns the bytes of memory that are left, None where that is not known.

    Attributes:
        at_once: those that may run code at the same time.
        kept: those that there may be, running or idle, while memory lasts.
    """

    def __init__(self, config: ContainersConfig, available: Callable[[], int | None] = available_memory) -> None:
        self.at_once = config.max_sandboxes
        self.kept = max(config.max_kept_sandboxes, config.max_sandboxes)
        self._least_free = config.min_memory_free
        self._available = available

    def surplus(self, there: int) -> int:
        """Return how many of the sandboxes that are there are too many now.

        While memory is short it is one of those beyond `at_once`: what ends frees memory only when it has ended.
        """
        if there > self.kept:
            return there - self.kept
        return int(there > self.at_once and self._is_short())

    def _is_short(self) -> bool:
        available = self._available()
        return available is not None and available < self._least_free
