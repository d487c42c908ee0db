"""A token that ends a turn, set by another thread or by a deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Cancel(threading.Event):
    """An event that also calls functions when it is set; they end the waits of the turn."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[Callable[[], object]] = []
        self._guard = threading.Lock()

    def set(self) -> None:
        """Set the event and call the functions, the latest first. Setting it again does nothing.

        The event is set first, so that a turn knows the reason when the functions make its waits fail.
        """
        with self._guard:
            was_set = self.is_set()
            super().set()
            ends = [] if was_set else self._ends[::-1]
        for end in ends:  # outside the lock: an end may take long, or close a context of its own
            end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Make `set` call `end` while this context is open; call it now if the event is set already."""
        with self._guard:
            self._ends.append(end)
            is_set = self.is_set()
        if is_set:
            end()
        try:
            yield
        finally:
            with self._guard:
                self._ends.remove(end)
