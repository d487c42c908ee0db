"""Limits on sandboxes: how many run code at once, and how many are kept in all, with their variables."""

from __future__ import annotations

from collections.abc import Callable

from agent_tools.containers.config import ContainersConfig
from agent_tools.machine.machine import available_memory


class SlotLimits:
    """Limits on the number of sandboxes. `available` returns the free bytes of memory; None if not known.

    Attributes:
        at_once: sandboxes that may run code at the same time; these are kept even if memory is short.
        kept: sandboxes that may exist, running or idle, while memory lasts.
    """

    def __init__(self, config: ContainersConfig, available: Callable[[], int | None] = available_memory) -> None:
        self.at_once = config.max_sandboxes
        self.kept = max(config.max_kept_sandboxes, config.max_sandboxes)
        self._least_free = config.min_memory_free
        self._available = available

    def surplus(self, there: int) -> int:
        """Return how many of the existing sandboxes should be parked now.

        While memory is short it is one at a time, beyond `at_once`: a sandbox frees memory only when it has ended.
        """
        if there > self.kept:
            return there - self.kept
        return int(there > self.at_once and self._is_short())

    def _is_short(self) -> bool:
        available = self._available()
        return available is not None and available < self._least_free
