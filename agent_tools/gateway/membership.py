"""The gateways that share a database: each has a row in it while it lives, and knows the others by theirs.

They are one service if they also share `data_dir` with files, uploads and saved variables: then any of them serves what
is stored. A container is used where its sandbox is, and a response under way where it runs: the proxy sends a key's
requests to one gateway. A gateway that cannot share files with the others does not start.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
import time
from dataclasses import replace

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.data_dir import folder_id
from agent_tools.gateway.store.records import GatewayRow
from agent_tools.gateway.store.store import Store, packed
from agent_tools.machine.owner import Owner, is_orphan

BEAT_EVERY = 2.0  # seconds between two signs of life
MAX_SILENCE = 20.0  # seconds without one, after which a gateway on another machine counts as gone
RECOVERY_SECONDS = 3 * BEAT_EVERY  # seconds in which others may give a sign, after this gateway itself could give none
_log = logging.getLogger(__name__)


class GatewayMembership:
    """The row of one gateway, and the rows of the others as of its last heartbeat. Thread-safe.

    Attributes:
        id: its name among them, new at each start.
    """

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.id = secrets.token_hex(16)
        self._store = store
        self._lock = threading.Lock()
        self._others: dict[str, GatewayRow] = {}
        self._beat_at = self._recovers_until = time.monotonic()
        self._row = GatewayRow(
            id=self.id,
            created_at=time.time(),
            seen_at=time.time(),
            process=packed(Owner.current().labels),
            folder=folder_id(config.data_dir),
            address=f"{socket.gethostname()}:{config.port}",
        )

    def join(self) -> None:
        """Add this gateway's row.

        Raises:
            InvalidParams: it cannot share the database with one of them.
        """
        check_others(self._store, self._row.folder)
        self._store.add(self._row)
        self.beat()

    def leave(self) -> None:
        """Remove this gateway's row, so that the others may take its containers."""
        self._store.delete(GatewayRow, id=self.id)

    def beat(self) -> None:
        """Write a heartbeat, read those of the others, and remove the rows of dead gateways."""
        now = time.time()
        if not self._store.change(GatewayRow, self.id, seen_at=now):  # others considered it dead
            _log.warning("this gateway could not write a heartbeat for too long: others took its place")
            self._store.add_if_new(replace(self._row, seen_at=now))
        rows = [row for row in self._store.find(GatewayRow) if row.id != self.id]
        self._record_gap()
        with self._lock:
            self._others = {row.id: row for row in rows if not self._is_gone(row, now)}
        for row in rows:
            if row.id not in self._others:
                self._store.delete(GatewayRow, id=row.id, seen_at=row.seen_at)

    @property
    def has_others(self) -> bool:
        """Other gateways are alive."""
        return bool(self._others)

    def living(self) -> dict[str, str]:
        """Return the ids of the gateways that are alive, with the others' host names and ports; '' for this one."""
        with self._lock:
            return {self.id: "", **{id_: row.address for id_, row in self._others.items()}}

    def is_alive(self, id_: str) -> bool:
        """Return True if another gateway is alive."""
        return bool(self.name_of(id_))

    def name_of(self, id_: str) -> str:
        """Return the host name and port of another gateway that is alive, '' if it is not.

        A new one is looked up in the database.
        """
        with self._lock:
            known = self._others.get(id_)
        row = known or self._store.get(GatewayRow, id_)
        return row.address if row and row.id != self.id and not self._is_gone(row, time.time()) else ""

    def _record_gap(self) -> None:
        """Give the others more time after this gateway's heartbeats failed: the database failed for all."""
        now = time.monotonic()
        if now - self._beat_at > MAX_SILENCE / 2:
            self._recovers_until = now + RECOVERY_SECONDS
        self._beat_at = now

    def _is_gone(self, row: GatewayRow, now: float) -> bool:
        is_recovering = time.monotonic() < self._recovers_until
        return is_orphan(json.loads(row.process)) if is_recovering else is_gone(row, now)


def check_others(store: Store, folder: str) -> None:
    """Check that a gateway with this `data_dir` may share a database with those that are alive on it.

    Raises:
        InvalidParams: it may not.
    """
    now = time.time()
    for row in store.find(GatewayRow):
        if is_gone(row, now):
            continue
        if row.folder != folder:
            raise InvalidParams(
                "Another gateway uses this database with another data_dir: files and uploads would be missing here. "
                "Give both the same folder, on shared storage, or stop the other one (it counts as stopped after "
                f"{MAX_SILENCE:g} s without a heartbeat)."
            )
        if store.is_file and _machine(row) != _machine_here():
            raise InvalidParams(
                "A gateway on another machine uses this SQLite file, which only programs of one machine can share: "
                "give both a PostgreSQL database (--database)."
            )


def is_gone(row: GatewayRow, now: float) -> bool:
    """Return True if a gateway's process has ended for certain, or its last heartbeat is too old."""
    return is_orphan(json.loads(row.process)) or now - row.seen_at > MAX_SILENCE


def _machine(row: GatewayRow) -> str:
    return str(json.loads(row.process).get("agent_tools.host", "")).partition("/")[0]


def _machine_here() -> str:
    return Owner.current().host.partition("/")[0]
