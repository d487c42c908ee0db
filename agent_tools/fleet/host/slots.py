"""The slots of a host: how many sandboxes live or are being made, and how many may."""

from __future__ import annotations

import threading

from agent_tools.errors import HostFull, InvalidParams


class Slots:
    """Thread-safe.

    Attributes:
        most: the number of all.
        taken: the number of those that are not free.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise InvalidParams(f"A host with {most} slots can hold nothing: give 1 or more.")
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        """Take one.

        Raises:
            HostFull: none is free.
        """
        if not self.take_up_to(1):
            raise HostFull(f"{self.taken} of {self.most} slots are taken.")

    def take_up_to(self, count: int) -> int:
        """Take so many, or those that are free; return how many."""
        with self._lock:
            found = max(0, min(count, self.most - self.taken))
            self.taken += found
            return found

    def free(self, count: int) -> None:
        """Give so many back."""
        with self._lock:
            self.taken -= count
