"""Responses under way in the background: each belongs to a gateway, and has failed once that is gone."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from agent_tools.gateway import store as tables
from agent_tools.gateway.requests.failures import stopped
from agent_tools.gateway.store import Row, Store, packed
from agent_tools.runtime.owner import Owner, is_orphan

UNDER_WAY = ("queued", "in_progress")
MAX_SILENCE = 60.0  # seconds without a sign, after which a gateway on another machine counts as gone


class UnderWay:
    """Those of all gateways that share a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ours: set[str] = set()

    def begin(self, id_: str) -> None:
        """A response of ours starts; before anyone can find it."""
        now = time.time()
        row = {"id": id_, "created_at": now, "gateway": packed(Owner.current().labels), "seen_at": now}
        self._store.add(tables.under_way, row)
        with self._lock:
            self._ours.add(id_)

    def end(self, id_: str) -> None:
        """It is over, and kept."""
        with self._lock:
            self._ours.discard(id_)
        self._store.delete(tables.under_way, id=id_)

    def settled(self, row: Row) -> Row:
        """A response's row, which has failed if it was under way in a gateway that is gone."""
        if row["status"] not in UNDER_WAY:
            return row
        known = self._store.get(tables.under_way, row["id"])
        if known is not None and not _is_lost(known):
            return row
        now = self._store.get(tables.responses, row["id"]) or row  # it may have ended just then
        return self._failed(now) if now["status"] in UNDER_WAY else now

    def sweep(self) -> None:
        """Give a sign for ours, and end what is lost."""
        with self._lock:
            ours = list(self._ours)
        for id_ in ours:
            self._store.change(tables.under_way, id_, seen_at=time.time())
        for known in self._store.find(tables.under_way):
            if _is_lost(known):
                if row := self._store.get(tables.responses, known["id"]):
                    self.settled(row)
                self._store.delete(tables.under_way, id=known["id"])

    def _failed(self, row: Row) -> Row:
        body: dict[str, Any] = json.loads(row["body"])
        body.update(status="failed", error={"code": "server_error", "message": stopped().message})
        ended = {"status": "failed", "body": packed(body)}
        self._store.change(tables.responses, row["id"], **ended)
        self._store.delete(tables.under_way, id=row["id"])
        return {**row, **ended}


def _is_lost(known: Row) -> bool:
    return is_orphan(json.loads(known["gateway"])) or time.time() - known["seen_at"] > MAX_SILENCE
