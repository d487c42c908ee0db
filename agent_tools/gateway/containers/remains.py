"""What is left of a container that is over: its files, and a row that says what is still to be done about them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from agent_tools.gateway import store as tables
from agent_tools.gateway.store import Row, Store
from agent_tools.runtime.files.removal import remove_tree

Ending = Literal["expiring", "deleting"]
"""The status of a container that is over while its files are there: then it is 'expired', or its row is gone."""


class Remains:
    """Removes the files of containers, and only then what is known of them. Thread-safe.

    The status is kept with the row, so that what one sweep could not remove is found by the next, also by that of
    another gateway, or of one that was started anew.
    """

    def __init__(self, folders: Path, store: Store, remove: Callable[[Path], bool] = remove_tree) -> None:
        self.failed = 0
        """How often files could not all be removed, since the start."""
        self._folders = folders
        self._store = store
        self._remove = remove
        self._lock = threading.Lock()
        self._at_work: set[str] = set()

    def begin(self, id_: str, ending: Ending) -> None:
        """Have a container's row say that it is over."""
        self._store.change(tables.containers, id_, status=ending)

    def finish(self, id_: str, ending: Ending) -> bool:
        """Remove a container's files, then its row, or call it expired; whether that is done."""
        if not self.remove_files(id_):
            return False
        self._store.delete(tables.container_files, container_id=id_)
        if ending == "deleting":
            self._store.delete(tables.containers, id=id_)
        else:
            self._store.change(tables.containers, id_, status="expired")
        return True

    def remove_files(self, id_: str) -> bool:
        """Remove a container's folder; whether it is gone."""
        is_removed = False
        with self._lock:
            self._at_work.add(id_)
        try:
            is_removed = self._remove(self._folders / id_)
        finally:
            with self._lock:
                self._at_work.discard(id_)
                self.failed += not is_removed
        return is_removed

    def unfinished(self) -> list[tuple[str, Ending]]:
        """The containers that are over and have files that nobody is removing, and how each ends."""
        rows = self._store.find(tables.containers, status=["expiring", "deleting"]) + self._expired_with_folder()
        with self._lock:
            rows = [row for row in rows if row["id"] not in self._at_work]
        return [(row["id"], "deleting" if row["status"] == "deleting" else "expiring") for row in rows]

    def _expired_with_folder(self) -> list[Row]:
        """Those that got their folder back after their end, from a sandbox that was being started."""
        with suppress(FileNotFoundError):
            return self._store.get_all(tables.containers, os.listdir(self._folders), status="expired")
        return []
