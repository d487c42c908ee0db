"""Leases: of all the processes that share rows, one at a time has the sandbox of a container.

Theory of operation
    A container's row names the process that has its sandbox, its holder, and counts in `generation` how often one took
    it. Taking and giving up are single changes of the row under a condition, so of two that try at once one fails. A
    holder keeps the container while it is alive, also when it does nothing with it: then it has the variables.

    Whoever needs a container that another holds writes its own name into `wanted_by`. The holder sees that when it next
    looks, saves the variables, and gives the container up as soon as no code runs in it. A holder that is gone is not
    asked: the container is taken from it, with what was saved of it. One that only seemed gone finds another generation
    in the row, and drops what it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from agent_tools.containers.failures import ContainerElsewhere, ContainerExpired
from agent_tools.containers.records import ContainerRecord, Rows

ASK_EVERY = 0.1  # seconds between two looks at a container that another process is to give up
DELETE_PATIENCE = 5.0  # seconds until another process has deleted one
HANDOVER_PATIENCE = 30.0  # seconds until another process has given a container up


class ContainerLeases:
    """The leases of one process, `holder`. Thread-safe.

    `is_alive` says of another holder that it is there and serves its containers.
    """

    def __init__(
        self,
        rows: Rows,
        holder: str = "here",
        is_alive: Callable[[str], bool] = lambda _: False,
        patience: float = HANDOVER_PATIENCE,
    ) -> None:
        self.holder = holder
        self.patience = patience
        self.is_alive = is_alive
        self._rows = rows
        self._pause = threading.Event()  # never set

    def holds(self, row: ContainerRecord) -> bool:
        """Return True if this process has the sandbox of a container."""
        return row.gateway == self.holder

    def holder_elsewhere(self, row: ContainerRecord) -> str:
        """Return the living process that has a container's sandbox, '' if it is this one or none."""
        other = "" if self.holds(row) else row.gateway
        return other if other and self.is_alive(other) else ""

    def take(self, id_: str, now: float) -> ContainerRecord | None:
        """Take a container that is called; return its row as it was before, with the generation of now.

        Return None if another process has it, or has just changed its row.

        Raises:
            ContainerExpired: it is over.
        """
        row = self._rows.get(ContainerRecord, id_, status="active")
        if row is None:
            raise ContainerExpired()
        if self.holder_elsewhere(row):
            return None
        generation = row.generation + (not self.holds(row))
        as_it_was = {"status": "active", "gateway": row.gateway, "generation": row.generation}
        taken = {"gateway": self.holder, "generation": generation, "has_run": True, "last_active_at": now}
        wanted_by = "" if row.wanted_by == self.holder else row.wanted_by
        is_taken = self._rows.change(ContainerRecord, id_, as_it_was, **taken, wanted_by=wanted_by)
        return replace(row, generation=generation) if is_taken else None

    def ask_for(self, id_: str, since: float) -> None:
        """Have another process give a container up; wait a moment. `since` is when the asking began (monotonic).

        Raises:
            ContainerElsewhere: it has not for too long.
        """
        row = self._rows.get(ContainerRecord, id_, status="active")
        if row and (other := self.holder_elsewhere(row)):
            if time.monotonic() >= since + self.patience:
                raise ContainerElsewhere()
            if row.wanted_by != self.holder:
                self._rows.change(ContainerRecord, id_, {"gateway": other}, wanted_by=self.holder)
            self._pause.wait(ASK_EVERY)

    def give_up(self, id_: str) -> None:
        """Give a container up that has no sandbox here any more."""
        self._rows.change(ContainerRecord, id_, {"gateway": self.holder}, gateway="", wanted_by="")

    def is_gone_soon(self, id_: str) -> bool:
        """Wait for the holder of a container that is to be deleted; return False if its row is still there."""
        until = time.monotonic() + DELETE_PATIENCE
        while is_there := self._rows.get(ContainerRecord, id_) is not None:
            if time.monotonic() >= until:
                break
            self._pause.wait(ASK_EVERY)
        return not is_there

    def held(self) -> list[ContainerRecord]:
        """List the containers that are held here, by their rows."""
        return self._rows.find(ContainerRecord, gateway=self.holder)
