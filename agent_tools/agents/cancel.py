"""A token by which a turn is ended from another thread, or by a deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Cancel(threading.Event):
    """An event that, when set, also ends what is being waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[Callable[[], object]] = []
        self._guard = threading.Lock()

    def set(self) -> None:
        """End it all. Setting it again does nothing."""
        with self._guard:
            was_set = self.is_set()
            super().set()
            ends = [] if was_set else list(self._ends)
        for end in ends:
            end()

    @contextlib.contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """While inside, `set` calls `end`, from its own thread; at once if it is set already."""
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
