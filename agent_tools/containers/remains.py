"""An ended container leaves its files and a row, which says what is still to be done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agent_tools.containers.records import ContainerFile, ContainerRecord
from agent_tools.containers.rows import ANYHOW, Rows
from agent_tools.machine.removal import remove_tree

Ending = Literal["expiring", "deleting"]
"""The status of an ended container while its files exist; afterwards it is 'expired', or its row is deleted."""


class Remains:
    """Removes the files of containers, and only then their rows. Thread-safe.

    The row keeps the status, so that the next sweep finds files that could not be removed, even after a restart or in
    another gateway.

    Attributes:
        failed: how often some files could not be removed, since the start.
    """

    def __init__(self, folders: Path, rows: Rows, remove: Callable[[Path], bool] = remove_tree) -> None:
        self.failed = 0
        self._folders = folders
        self._rows = rows
        self._remove = remove
        self._lock = threading.Lock()
        self._at_work: set[str] = set()

    def begin(self, id_: str, ending: Ending, as_it_was: Mapping[str, Any] = ANYHOW) -> bool:
        """Mark a container's row as ended; return False if the row has changed or is gone."""
        return self._rows.change(ContainerRecord, id_, as_it_was, status=ending)

    def finish(self, id_: str, ending: Ending) -> bool:
        """Remove a container's files, then its row, or mark it expired; return False if some files stay."""
        if not self.remove_files(id_):
            return False
        self._rows.delete(ContainerFile, container_id=id_)
        if ending == "deleting":
            self._rows.delete(ContainerRecord, id=id_)
        else:
            self._rows.change(ContainerRecord, id_, status="expired", gateway="")
        return True

    def remove_files(self, id_: str) -> bool:
        """Remove a container's folder; return True if it is gone."""
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

    def unfinished(self, is_others: Callable[[ContainerRecord], object] = lambda _: False) -> list[tuple[str, Ending]]:
        """List the ended containers whose files no gateway is removing, and how each ends.

        Containers of another process are left to it.
        """
        rows = self._rows.find(ContainerRecord, status=["expiring", "deleting"]) + self._expired_with_folder()
        with self._lock:
            rows = [row for row in rows if row.id not in self._at_work and not is_others(row)]
        return [(row.id, "deleting" if row.status == "deleting" else "expiring") for row in rows]

    def _expired_with_folder(self) -> list[ContainerRecord]:
        """List ended containers whose folder was made again by a sandbox that was being started."""
        with suppress(FileNotFoundError):
            return self._rows.get_all(ContainerRecord, os.listdir(self._folders), status="expired")
        return []
