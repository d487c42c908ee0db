"""Background responses: each is claimed by a gateway, and has failed once that gateway is gone."""

from __future__ import annotations

import json
import threading
import time

from agent_tools.gateway.requests.failures import stopped
from agent_tools.gateway.store.records import BackgroundClaim, ResponseBody, ResponseHead
from agent_tools.gateway.store.store import Store, packed
from agent_tools.models.base import JsonObject
from agent_tools.runtime.owner import Owner, is_orphan

ACTIVE = ("queued", "in_progress")  # statuses of a response that has not ended
MAX_SILENCE = 60.0  # seconds without a sign, after which a gateway on another machine counts as gone


class Background:
    """The background responses of all gateways that share a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ours: set[str] = set()

    def begin(self, id_: str) -> None:
        """Claim a response for this gateway; before anyone can find it."""
        now = time.time()
        gateway = packed(Owner.current().labels)
        self._store.add(BackgroundClaim(id=id_, created_at=now, gateway=gateway, seen_at=now))
        with self._lock:
            self._ours.add(id_)

    def end(self, id_: str) -> None:
        """Drop the claim of a response that has ended and is stored."""
        with self._lock:
            self._ours.discard(id_)
        self._store.delete(BackgroundClaim, id=id_)

    def settled(self, head: ResponseHead) -> ResponseHead:
        """Return a response's columns as they are now; it has failed if its gateway was lost before its end."""
        if head.status not in ACTIVE:
            return head
        claim = self._store.get(BackgroundClaim, head.id)
        if claim is None or _is_lost(claim):
            self._fail(head.id)
            return self._store.get(ResponseHead, head.id) or head  # it may have ended just then
        return head

    def sweep(self) -> None:
        """Give a sign of life for this gateway's claims, and end the lost ones."""
        with self._lock:
            ours = list(self._ours)
        for id_ in ours:
            self._store.change(BackgroundClaim, id_, seen_at=time.time())
        for claim in self._store.find(BackgroundClaim):
            if _is_lost(claim):
                self._fail(claim.id)
                self._store.delete(BackgroundClaim, id=claim.id)

    def _fail(self, id_: str) -> None:
        """End a response as failed, unless it has ended by itself."""
        response = self._store.get(ResponseBody, id_)
        if response is None or response.status not in ACTIVE:
            return
        body: JsonObject = json.loads(response.body)
        body.update(status="failed", error={"code": "server_error", "message": stopped().message})
        self._store.change(ResponseBody, id_, status="failed", body=packed(body))
        self._store.delete(BackgroundClaim, id=id_)


def _is_lost(claim: BackgroundClaim) -> bool:
    return is_orphan(json.loads(claim.gateway)) or time.time() - claim.seen_at > MAX_SILENCE
