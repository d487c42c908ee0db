"""A lock for each container: one thread at a time takes, parks or ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class ContainerLocks:
    """The containers that are being taken, parked or ended. Thread-safe.

    Attributes:
        lock: held only for moments; never while the thread that has a container waits, such as for a database.
        taken: containers that are being taken; read it with the lock.
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
        """Wait for a container, and lock it for the block.

        `check`, if given, is called with the id and under the lock; it may raise to refuse that the container is taken.
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
        """Lock containers until `end`, even if others have locked them; with the lock."""
        self._changing.update(ids)

    def end(self, id_: str) -> None:
        """Unlock a container."""
        with self.lock:
            self._changing.discard(id_)
            self.taken.discard(id_)
            self.lock.notify_all()
