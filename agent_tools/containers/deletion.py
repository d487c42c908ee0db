"""Deletion and expiry of containers: first the sandbox is removed, then the files, then the row.

An ended container leaves its files and a row, which says what is still to be done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.containers.leases import ContainerLeases
from agent_tools.containers.records import ContainerFile, ContainerRecord
from agent_tools.containers.rows import ANYHOW, Rows
from agent_tools.containers.sandbox_slots import Slots
from agent_tools.containers.sweep import failures
from agent_tools.machine.removal import remove_tree
from agent_tools.sandbox.audit import AuditLog, AuditUnavailable

Ending = Literal["expiring", "deleting"]
"""The status of an ended container while its files exist; afterwards it is 'expired', or its row is deleted."""


class Endings:
    """Ends containers that are due or deleted by their owner. Thread-safe.

    The process that has a container's sandbox ends the container; other processes that share the rows do not.
    """

    def __init__(
        self,
        rows: Rows,
        slots: Slots,
        variables: KeptVariables,
        remains: Remains,
        leases: ContainerLeases,
        audit: AuditLog,
    ) -> None:
        self.remains = remains
        self._rows = rows
        self._slots = slots
        self._variables = variables
        self._leases = leases
        self._audit = audit

    def expired(self, row: ContainerRecord, now: float) -> ContainerRecord:
        """Return a container's current row, expired if it is due."""
        if not self._is_due(row, now):
            return row
        self._end(row.id, "expiring", _lease_of(row))
        return replace(row, status="expired")

    def delete(self, row: ContainerRecord) -> bool:
        """End a container with everything in it; return False if some files are not removed yet.

        Raises:
            ContainerElsewhere: another process has its sandbox.
        """
        self._leases.check_holder(row)
        return self._end(row.id, "deleting")

    def sweep(self, now: float) -> int:
        """End the containers that are due, finish ended ones, and return the number of failures."""
        over = self.remains.unfinished(self._leases.holder_elsewhere)
        failed = sum(failures(partial(self._end_again, *each)) for each in over)
        for row in self._rows.find(ContainerRecord, status="active"):
            failed += failures(partial(self._end_if_due, row, now))
        return failed

    def drop_taken_over(self) -> None:
        """Drop the sandboxes of containers that other processes took over."""
        there = self._slots.generations()
        rows = {row.id: row for row in self._leases.of_this_process()}  # read later, so that it has all of them
        for id_, generation in there.items():
            if id_ not in rows or rows[id_].generation != generation:
                self._slots.drop(id_, generation)

    def clear(self, id_: str, close: Callable[[], None]) -> None:
        """Close a sandbox that had lost its slot; remove files that it made again for an ended container."""
        close()
        if self._rows.get(ContainerRecord, id_, status="active") is None:
            self._variables.remove(id_)
            self.remains.remove_files(id_)

    def _is_due(self, row: ContainerRecord, now: float) -> bool:
        if row.status != "active" or self._leases.holder_elsewhere(row):
            return False
        return not self._slots.is_in_use(row.id) and now > row.last_active_at + row.idle_minutes * 60

    def _end_if_due(self, row: ContainerRecord, now: float) -> int:
        return int(self._is_due(row, now) and not self._end(row.id, "expiring", _lease_of(row)))

    def _end_again(self, id_: str, ending: Ending) -> int:
        return int(not self._end(id_, ending))

    def _end(self, id_: str, ending: Ending, as_it_was: Mapping[str, Any] = ANYHOW) -> bool:
        """Close a container's sandbox, remove its files, then mark it deleted or expired; False if files stay."""
        begin = partial(self.remains.begin, id_, ending, as_it_was)
        if not self._slots.end(id_, begin, even_if_in_use=ending == "deleting"):
            return True  # just now it was due
        self._variables.remove(id_)
        with suppress(AuditUnavailable):  # the container has ended
            self._audit.write("container_deleted", container=id_, reason=ending)
        return self.remains.finish(id_, ending)


def _lease_of(row: ContainerRecord) -> Mapping[str, Any]:
    """Return the columns of a row that change when the container is taken or used."""
    names = ("status", "gateway", "generation", "last_active_at")
    return {name: getattr(row, name) for name in names}


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
