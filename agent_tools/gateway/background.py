"""Background responses: a gateway claims each one, and the response becomes failed when that gateway dies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from agent_tools.gateway.requests.failures import stopped
from agent_tools.gateway.store.records import BackgroundClaim, ResponseBody, ResponseHead, StoredEvents
from agent_tools.gateway.store.store import Store, StoreError, packed
from agent_tools.machine.owner import Owner, is_orphan
from agent_tools.models.base import JsonObject

ACTIVE = ("queued", "in_progress")  # statuses of a response that has not ended
NOT_STORED = "The response could not be stored: the gateway's disk is nearly full, or its database does not answer."
MAX_SILENCE = 60.0  # seconds without a heartbeat, after which a gateway on another machine counts as dead


class BackgroundResponses:
    """The background responses of all gateways that share a store. Thread-safe.

    `is_alive` returns whether another gateway, by its id, is running.
    """

    def __init__(self, store: Store, gateway: str = "", is_alive: Callable[[str], bool] = lambda _: False) -> None:
        self._store = store
        self._gateway = gateway
        self._is_alive = is_alive
        self._lock = threading.Lock()
        self._ours: set[str] = set()
        self._unstored: set[str] = set()  # ended here, but not in the store

    def begin(self, id_: str) -> None:
        """Claim a response for this gateway, before any request can find it."""
        now = time.time()
        gateway = packed({**Owner.current().labels, "gateway": self._gateway})
        self._store.add(BackgroundClaim(id=id_, created_at=now, gateway=gateway, seen_at=now))
        with self._lock:
            self._ours.add(id_)

    def end(self, id_: str) -> None:
        """Drop the claim of a response that has ended and is stored. Raises nothing: a sweep drops remaining claims."""
        with self._lock:
            self._ours.discard(id_)
        with suppress(StoreError):
            self._store.delete(BackgroundClaim, id=id_)

    def give_up(self, id_: str) -> None:
        """Note that a response ended unstored; it is marked as failed once the store works again. Raises nothing."""
        with self._lock:
            self._unstored.add(id_)
        with suppress(StoreError):  # the next sweep, or the next request for it, tries again
            self._fail_unstored(id_)

    def gateway_of(self, id_: str) -> str:
        """Return the id of the gateway that makes a response now, '' if none does."""
        claim = self._store.get(BackgroundClaim, id_)
        return str(json.loads(claim.gateway).get("gateway", "")) if claim else ""

    def settled(self, head: ResponseHead) -> ResponseHead:
        """Return a response's current columns; mark it as failed if its gateway died before its end."""
        if head.status not in ACTIVE:
            return head
        with self._lock:
            if head.id in self._ours and head.id not in self._unstored:  # it goes on here, whenever its sign was given
                return head
        if head.id in self._unstored:
            self._fail_unstored(head.id)
            return self._store.get(ResponseHead, head.id) or head
        claim = self._store.get(BackgroundClaim, head.id)
        if claim is None or self._is_lost(claim):
            self._fail(head.id, stopped().message)
            return self._store.get(ResponseHead, head.id) or head  # it may have ended just then
        return head

    def sweep(self) -> None:
        """Renew this gateway's claims, and end the claims of dead gateways."""
        with self._lock:
            ours, unstored = list(self._ours), list(self._unstored)
        for id_ in unstored:
            self._fail_unstored(id_)
        for id_ in ours:
            self._store.change(BackgroundClaim, id_, seen_at=time.time())
        for claim in self._store.find(BackgroundClaim):
            if claim.id not in ours and self._is_lost(claim):
                self._fail(claim.id, stopped().message)
                self._store.delete(BackgroundClaim, id=claim.id)

    def _fail_unstored(self, id_: str) -> None:
        self._fail(id_, NOT_STORED)
        self._store.delete(StoredEvents, id=id_)  # stored events may report another end
        self.end(id_)
        with self._lock:
            self._unstored.discard(id_)

    def _fail(self, id_: str, why: str) -> None:
        """End a response as failed, unless it has ended by itself."""
        response = self._store.get(ResponseBody, id_)
        if response is None or response.status not in ACTIVE:
            return
        body: JsonObject = json.loads(response.body)
        body.update(status="failed", error={"code": "server_error", "message": why})
        self._store.change(ResponseBody, id_, {"status": list(ACTIVE)}, status="failed", body=packed(body))
        self._store.delete(BackgroundClaim, id=id_)

    def _is_lost(self, claim: BackgroundClaim) -> bool:
        """Return whether the response's gateway is dead; a live gateway with slow sweeps has other heartbeats."""
        gateway = json.loads(claim.gateway)
        if self._is_alive(str(gateway.get("gateway", ""))):
            return False
        return is_orphan(gateway) or time.time() - claim.seen_at > MAX_SILENCE
