"""The gateways that share a database: each has a row in it while it lives, and knows the others by theirs.

They are one service if they also share `data_dir`, where files, uploads and saved variables lie: any of them serves any
request then. What cannot be shared is refused at the start of the gateway that would share it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.records import GatewayRow
from agent_tools.gateway.store.store import Store, packed
from agent_tools.machine.owner import Owner, is_orphan

BEAT_EVERY = 2.0  # seconds between two signs of life
MAX_SILENCE = 20.0  # seconds without one, after which a gateway on another machine counts as gone
PATIENCE = 3 * BEAT_EVERY  # seconds in which others may give a sign, after this gateway itself could give none
FOLDER_ID = "folder-id"  # the file in data_dir that tells it from others
_MAX_ID = 64  # characters
_log = logging.getLogger(__name__)


class Presence:
    """One gateway's row, and what it knows of the others, as of its last sign of life. Thread-safe.

    Attributes:
        id: its name among them, new at each start.
    """

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.id = secrets.token_hex(16)
        self._store = store
        self._lock = threading.Lock()
        self._others: dict[str, GatewayRow] = {}
        self._beat_at = self._patient_until = time.monotonic()
        self._row = GatewayRow(
            id=self.id,
            created_at=time.time(),
            seen_at=time.time(),
            owner=packed(Owner.current().labels),
            folder=folder_id(config.data_dir),
            address=config.address,
        )

    def join(self) -> None:
        """Appear among the others.

        Raises:
            InvalidParams: it cannot share the database with one of them.
        """
        check_others(self._store, self._row.folder)
        self._store.add(self._row)
        self.beat()

    def leave(self) -> None:
        """Disappear. What this gateway had is free for the others."""
        self._store.delete(GatewayRow, id=self.id)

    def beat(self) -> None:
        """Give a sign of life, look for those of the others, and forget the ones that are gone."""
        now = time.time()
        if not self._store.change(GatewayRow, self.id, seen_at=now):  # others took it for gone
            _log.warning("the database did not hear of this gateway for so long that others took its place")
            self._store.add_if_new(replace(self._row, seen_at=now))
        rows = [row for row in self._store.find(GatewayRow) if row.id != self.id]
        self._note_gap()
        with self._lock:
            self._others = {row.id: row for row in rows if not self._is_gone(row, now)}
        for row in rows:
            if row.id not in self._others:
                self._store.delete(GatewayRow, id=row.id, seen_at=row.seen_at)

    @property
    def has_others(self) -> bool:
        """Other gateways are alive."""
        return bool(self._others)

    def is_alive(self, id_: str) -> bool:
        """Return True if another gateway is there. One that has just come is looked up."""
        return self.other(id_) is not None

    def other(self, id_: str) -> GatewayRow | None:
        """Return the row of another gateway that is alive."""
        with self._lock:
            known = self._others.get(id_)
        row = known or self._store.get(GatewayRow, id_)
        return row if row and row.id != self.id and not self._is_gone(row, time.time()) else None

    def _note_gap(self) -> None:
        """Be patient with the others after a time without a sign of one's own: the database was away for all."""
        now = time.monotonic()
        if now - self._beat_at > MAX_SILENCE / 2:
            self._patient_until = now + PATIENCE
        self._beat_at = now

    def _is_gone(self, row: GatewayRow, now: float) -> bool:
        is_patient = time.monotonic() < self._patient_until
        return is_orphan(json.loads(row.owner)) if is_patient else is_gone(row, now)


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
                "Another gateway has this database, and another data_dir: files and uploads would be missing "
                "here. Give both the same folder, on storage that they share, or stop the other one "
                f"(it counts as stopped after {MAX_SILENCE:g} s without a sign)."
            )
        if store.is_file and _machine(row) != _machine_here():
            raise InvalidParams(
                "A gateway on another machine has this SQLite file, which only programs of one machine can share: give "
                "both a PostgreSQL database (--database)."
            )


def is_gone(row: GatewayRow, now: float) -> bool:
    """Return True if a gateway's process is certainly gone, or has given no sign of life for too long."""
    return is_orphan(json.loads(row.owner)) or now - row.seen_at > MAX_SILENCE


def folder_id(data_dir: Path) -> str:
    """Return the id of a `data_dir`, which its first gateway writes into it."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data_dir / FOLDER_ID
    made = data_dir / f"{FOLDER_ID}.{secrets.token_hex(8)}"
    if not path.exists():
        made.write_text(secrets.token_hex(16), encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(made, path)  # whole, and never over another's
        made.unlink()
    return path.read_text(encoding="ascii", errors="replace")[:_MAX_ID]


def _machine(row: GatewayRow) -> str:
    return str(json.loads(row.owner).get("agent_tools.host", "")).partition("/")[0]


def _machine_here() -> str:
    return Owner.current().host.partition("/")[0]
