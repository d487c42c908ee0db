"""Storing one response: from its start if it is made in the background, else at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.gateway.conversations.stored import Hidden
from agent_tools.gateway.jobs.event_log import Logged, packed_events
from agent_tools.gateway.responses.body import listed_items
from agent_tools.gateway.responses.plan import Plan
from agent_tools.gateway.responses.share import ResponseShare
from agent_tools.gateway.responses.stored_items import forget, note_calls, rows_of
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import StoredEvents, StoredResponse
from agent_tools.gateway.store.store import packed, packed_lines
from agent_tools.models.base import JsonObject

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A response as it stands: its status, its body as JSON, and the state that the next response builds on."""

    status: str
    body: str
    conversation: Sequence[Mapping[str, Any]]
    container_id: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A response that has ended. `hidden` is what no client sees of its items."""

    body: JsonObject
    snapshot: Snapshot
    hidden: Hidden
    events: Sequence[Logged]


class ResponseStorage:
    """Stores one response. For one thread at a time."""

    def __init__(self, services: Services, plan: Plan, id_: str) -> None:
        self._services = services
        self._store = services.store
        self._share = ResponseShare(services.config, services.store, services.shares)
        self._plan = plan
        self._id = id_
        self._input_size = 0
        self._is_claimed = False  # as one that goes on in the background

    def begin(self, snapshot: Snapshot) -> None:
        """Store a response that is only begun, so that it can be asked for."""
        self._services.background.begin(self._id)
        try:
            self._store.add(self._record(snapshot))
        except BaseException:
            self._services.background.end(self._id)
            raise
        self._is_claimed = True

    def end(self, outcome: Outcome) -> bool:
        """Store a response that has ended; return False if that failed. Raises nothing."""
        is_background = self._plan.request.background
        try:
            self._share.check_disk()
            note_calls(self._store, self._plan.owner, outcome.body, outcome.hidden)
            more = rows_of(self._plan.owner, outcome.body, outcome.hidden)
            if not is_background:
                self._store.add(self._record(outcome.snapshot, outcome.hidden.size), *more)
            else:
                self._store.add(*more)
                if not self._change(outcome):
                    forget(self._store, self._id, outcome.hidden.told)
        except Exception as exc:  # noqa: BLE001  (whatever it is, the client gets the answer)
            _log.error("a response could not be stored: %s", type(exc).__name__)
            self.close()
            return False
        if is_background:
            self._is_claimed = False
            self._services.background.end(self._id)
        return True

    def close(self) -> None:
        """Have a response fail that goes on in the background and has not been stored. Raises nothing."""
        if self._is_claimed:
            self._is_claimed = False
            self._services.background.give_up(self._id)

    def _record(self, snapshot: Snapshot, more: int = 0) -> StoredResponse:
        """Return the row; `more` are the bytes that are stored beside it."""
        lines = packed_lines(listed_items(self._plan.request.input))
        conversation = packed(snapshot.conversation)
        self._input_size = len(lines)
        return StoredResponse(
            id=self._id,
            owner=self._plan.owner,
            created_at=time.time(),
            status=snapshot.status,
            background=self._plan.request.background,
            bytes=self._input_size + len(snapshot.body) + len(conversation) + more,
            container_id=snapshot.container_id,
            body=snapshot.body,
            input=lines,
            conversation=conversation,
        )

    def _change(self, outcome: Outcome) -> bool:
        """Store the end of a background response with all its events; return False if it was deleted meanwhile."""
        snapshot, data = outcome.snapshot, packed_events(outcome.events)
        conversation = packed(snapshot.conversation)
        self._store.add(StoredEvents(id=self._id, created_at=time.time(), data=data))
        return self._store.change(
            StoredResponse,
            self._id,
            status=snapshot.status,
            bytes=self._input_size + len(snapshot.body) + len(conversation) + outcome.hidden.size + len(data),
            container_id=snapshot.container_id,
            body=snapshot.body,
            conversation=conversation,
        )
