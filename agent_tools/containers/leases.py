"""Leases: among the processes that share rows, only one at a time has the sandbox of a container.

Theory of operation
    A container's row names its holder, the process that has its sandbox, and counts in `generation` how often a
    process took it. Acquiring and releasing are single conditional updates of the row, so of two processes that try
    at once one fails. A holder keeps the container while it is alive, even if it is idle, since it has the variables.

    A holder that parks a container, its variables saved, has it no longer, so any process may take it then. From a
    holder that is gone the container is taken, with its last saved variables. One that only seemed gone finds another
    generation in the row, and drops its sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent_tools.containers.failures import ContainerElsewhere, ContainerExpired
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import Rows


class ContainerLeases:
    """The leases of one process, `holder`. Thread-safe.

    `name_of` returns the name of another holder that runs and serves its containers, '' if it does not.
    """

    def __init__(self, rows: Rows, holder: str = "here", name_of: Callable[[str], str] = lambda _: "") -> None:
        self.holder = holder
        self._name_of = name_of
        self._rows = rows

    def holds(self, row: ContainerRecord) -> bool:
        """Return True if this process has the sandbox of a container."""
        return row.gateway == self.holder

    def holder_elsewhere(self, row: ContainerRecord) -> str:
        """Return the name of the living process that has a container's sandbox; '' for this process or none."""
        return self._name_of(row.gateway) if row.gateway and not self.holds(row) else ""

    def check_holder(self, row: ContainerRecord) -> None:
        """Check that no other process has a container's sandbox. Raises ContainerElsewhere."""
        if name := self.holder_elsewhere(row):
            raise ContainerElsewhere(name)

    def take_lease(self, id_: str, now: float) -> ContainerRecord | None:
        """Acquire a container for a call; return its previous row, with the new generation.

        Return None if another process has just changed its row.

        Raises:
            ContainerExpired: the container has ended.
            ContainerElsewhere: another process has it.
        """
        row = self._rows.get(ContainerRecord, id_, status="active")
        if row is None:
            raise ContainerExpired()
        self.check_holder(row)
        generation = row.generation + (not self.holds(row))
        as_it_was = {"status": "active", "gateway": row.gateway, "generation": row.generation}
        taken = {"gateway": self.holder, "generation": generation, "has_run": True, "last_active_at": now}
        is_taken = self._rows.change(ContainerRecord, id_, as_it_was, **taken)
        return replace(row, generation=generation) if is_taken else None

    def release_lease(self, id_: str) -> None:
        """Release a container that has no sandbox in this process any more."""
        self._rows.change(ContainerRecord, id_, {"gateway": self.holder}, gateway="")

    def of_this_process(self) -> list[ContainerRecord]:
        """List the rows of the containers whose sandbox this process has."""
        return self._rows.find(ContainerRecord, gateway=self.holder)
