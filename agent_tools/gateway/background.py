"""Background responses: each names the gateway that makes it, and becomes failed when that gateway dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

from agent_tools.containers.failures import RowsAway
from agent_tools.gateway.requests.api_errors import stopped
from agent_tools.gateway.store.records import ResponseBody, ResponseHead
from agent_tools.gateway.store.store import Store, packed
from agent_tools.models.base import JsonObject

ACTIVE = ("queued", "in_progress")  # statuses of a response that has not ended
NOT_STORED = "The response could not be stored: the gateway's disk is nearly full, or its database does not answer."


class BackgroundResponses:
    """The background responses of all gateways that share a store. Thread-safe.

    `gateway` is the id of this gateway; `is_alive` returns whether another one is running.
    """

    def __init__(self, store: Store, gateway: str = "", is_alive: Callable[[str], bool] = lambda _: False) -> None:
        self.gateway = gateway
        self._store = store
        self._is_alive = is_alive
        self._lock = threading.Lock()
        self._unstored: set[str] = set()  # ended here, but not in the store

    def mark_unstored(self, id_: str) -> None:
        """Note that a response ended unstored; it is marked as failed once the store works again. Raises nothing."""
        with self._lock:
            self._unstored.add(id_)
        with suppress(RowsAway):  # the next sweep, or the next request for it, tries again
            self._fail_unstored(id_)

    def settled(self, head: ResponseHead) -> ResponseHead:
        """Return a response's current columns; mark it as failed if its gateway died before its end."""
        if head.status not in ACTIVE:
            return head
        if head.id in self._unstored:
            self._fail_unstored(head.id)
        elif self._is_lost(head):
            self._fail(head.id, stopped().message)
        else:
            return head
        return self._store.get(ResponseHead, head.id) or head  # it may have ended just then

    def sweep(self) -> None:
        """Mark the responses of dead gateways, and responses that ended here unstored, as failed."""
        with self._lock:
            unstored = list(self._unstored)
        for id_ in unstored:
            self._fail_unstored(id_)
        for head in self._store.find(ResponseHead, status=list(ACTIVE)):
            if self._is_lost(head):
                self._fail(head.id, stopped().message)

    def _fail_unstored(self, id_: str) -> None:
        self._fail(id_, NOT_STORED)
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

    def _is_lost(self, head: ResponseHead) -> bool:
        return head.gateway != self.gateway and not self._is_alive(head.gateway)
