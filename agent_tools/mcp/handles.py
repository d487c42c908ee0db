"""The handles of containers: each is given out at once, and its container is made by what is first done in it."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from typing import Any

from agent_tools.containers.container_locks import ContainerLocks
from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainerNotFound
from agent_tools.containers.ids import new_id
from agent_tools.containers.keys import first_of_most
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import Rows
from agent_tools.containers.spec import ContainerSpec

MAX_FRESH = 1_000  # handles whose containers are still to be made; the oldest of the key with most is forgotten first


@dataclass(frozen=True)
class Stock:
    """Containers, and how the clients of a server get them.

    Attributes:
        is_alone: one client has the server for itself, as on stdio: it may leave the handle out.
        domains: what the code may reach.
    """

    containers: Containers[Any]
    rows: Rows
    is_alone: bool = False
    domains: tuple[str, ...] = ()


class Handles:
    """Gives them out, and makes the containers. Thread-safe."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._lock = threading.Lock()  # held for moments
        self._making = ContainerLocks()
        self._fresh: dict[str, str] = {}  # with their owners, in the order in which they were given out
        self._usual = ""

    @property
    def usual(self) -> str:
        """The container of a client that gives no handle, '' if there is none."""
        usual = self._usual
        if usual in self._fresh or (usual and self._stock.rows.get(ContainerRecord, usual, status="active")):
            return usual
        return ""

    def new(self, owner: str) -> str:
        """Return the handle of the usual container, or that of a new one where each call has its own."""
        if self._stock.is_alone and self.usual:
            return self.usual
        made = f"cntr_{secrets.token_hex(4)}" if self._stock.is_alone else new_id("cntr")  # else it is hard to guess
        self._usual = made if self._stock.is_alone else ""
        with self._lock:
            self._fresh[made] = owner
            if len(self._fresh) > MAX_FRESH:
                del self._fresh[list(self._fresh)[first_of_most(list(self._fresh.values()))]]
        return made

    def ensure(self, owner: str, handle: str) -> None:
        """Make the container if that is still to be done; asking for it counts as use. It blocks: for a thread.

        Raises:
            ContainersError: it cannot be made, or this owner has none of this handle.
        """
        if self._fresh.get(handle) == owner:
            with self._making.alone(handle):
                if handle in self._fresh:
                    self._stock.containers.create(owner, ContainerSpec("mcp", domains=self._stock.domains), handle)
                    self._fresh.pop(handle, None)
        try:
            self._stock.containers.active(owner, handle)
        except ContainerNotFound as exc:
            exc.message += " Leave `container` out to go on in another one."
            raise
