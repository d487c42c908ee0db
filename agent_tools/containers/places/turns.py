"""Turns: whoever takes, parks or ends a container does so alone, and others wait for the end of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class Turns:
    """The containers that are changing. Thread-safe.

    Attributes:
        lock: held for moments only; never while one who is alone with a container waits, such as for a database.
        taken: those of them that somebody takes; read it with the lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.taken: set[str] = set()
        self._changing: set[str] = set()

    def __contains__(self, id_: str) -> bool:
        """Return whether a container is changing; with the lock."""
        return id_ in self._changing

    @contextmanager
    def alone(self, id_: str, check: Callable[[str], None] | None = None) -> Iterator[None]:
        """Wait for a container, and let nobody else change it meanwhile.

        With `check` it is taken, which may be refused: that is called with the id, and with the lock.
        """
        with self.lock:
            self.lock.wait_for(lambda: id_ not in self)
            if check:
                check(id_)
                self.taken.add(id_)
            self._changing.add(id_)
        try:
            yield
        finally:
            self.end(id_)

    def begin(self, ids: Iterable[str]) -> None:
        """Change containers from now on until `end`, whoever else does; with the lock."""
        self._changing.update(ids)

    def end(self, id_: str) -> None:
        """Let others have a container."""
        with self.lock:
            self._changing.discard(id_)
            self.taken.discard(id_)
            self.lock.notify_all()
