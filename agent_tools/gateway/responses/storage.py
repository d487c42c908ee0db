"""Stores one response: from its start if it is made in the background, else at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from agent_tools.containers.records import Record
from agent_tools.gateway.background import ACTIVE
from agent_tools.gateway.conversations.stored import ServerOnlyFields
from agent_tools.gateway.event_log import Logged, packed_events
from agent_tools.gateway.requests.api_errors import full
from agent_tools.gateway.responses.listed_items import listed_items
from agent_tools.gateway.responses.request import ResponseRequest
from agent_tools.gateway.responses.stored_items import forget_items, record_calls, rows_of
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import ResponseEnd, ResponseHead, StoredEvents, StoredResponse
from agent_tools.gateway.store.store import packed_lines
from agent_tools.models.base import JsonObject

_log = logging.getLogger(__name__)


def check_quota(services: Services, owner: str) -> None:
    """Check that an owner may have another response stored.

    Raises:
        ApiError: 400, the stored responses are the owner's whole quota.
        DiskFull: nothing more is stored for anyone.
    """
    config, mend = services.config, "Delete some (DELETE /v1/responses/{id}), or send 'store': false."
    number, size = services.store.amount(StoredResponse, owner=owner)
    if number >= config.max_stored_responses:
        raise full(f"You have {config.max_stored_responses:,} stored responses, the maximum. {mend}")
    if size >= config.max_stored_bytes:
        raise full(f"Your stored responses take all {config.max_stored_bytes:,} bytes that they may. {mend}")
    _check_disk(services)


def _check_disk(services: Services) -> None:
    if not services.config.database:  # a database elsewhere has a disk of its own
        services.shares.check_disk()


class ResponseStorage:
    """Stores one response. For one thread at a time."""

    def __init__(self, services: Services, request: ResponseRequest, owner: str, id_: str) -> None:
        self._services = services
        self._store = services.store
        self._request = request
        self._owner = owner
        self._id = id_
        self._input_size = 0
        self._is_active = False  # stored as one that goes on in the background

    def begin(self, state: ResponseEnd, text: str) -> None:
        """Store a response that is only begun, so that it can be asked for; `text` is its body as JSON."""
        self._store.add(self._record(state, text))
        self._is_active = True

    def has_failed(self) -> bool:
        """Return whether a response of the background counts as failed already, since this gateway seemed dead."""
        head = self._store.get(ResponseHead, self._id) if self._is_active else None
        return head is not None and head.status not in ACTIVE

    def end(
        self, body: JsonObject, state: ResponseEnd, text: str, hidden: ServerOnlyFields, events: Sequence[Logged]
    ) -> bool:
        """Store a response that has ended; return False if that failed, or its row has ended before. Raises nothing.

        `text` is its body as JSON; `hidden` is what no client sees of its items.
        """
        is_background = self._request.background
        try:
            _check_disk(self._services)
            record_calls(self._store, self._owner, body, hidden)
            more = rows_of(self._owner, body, hidden)
            is_stored = True
            if not is_background:
                self._store.add(self._record(state, text, hidden.size), *more)
            elif not self._change(state, text, hidden, packed_events(events), more):
                forget_items(self._store, self._id)
                is_stored = False
        except Exception as exc:  # noqa: BLE001  (the client gets the answer, whatever fails here)
            _log.error("a response could not be stored: %s", type(exc).__name__)
            self.close()
            return False
        self._is_active = False
        return is_stored

    def close(self) -> None:
        """Mark a response that goes on in the background and has not been stored as failed. Raises nothing."""
        if self._is_active:
            self._is_active = False
            self._services.background.mark_unstored(self._id)

    def _record(self, state: ResponseEnd, text: str, more: int = 0) -> StoredResponse:
        """Return the row; `more` are the bytes that are stored beside it."""
        lines = packed_lines(listed_items(self._request.input))
        self._input_size = len(lines) + len(state.tools)
        return StoredResponse(
            **vars(state),
            owner=self._owner,
            created_at=time.time(),
            background=self._request.background,
            gateway=self._services.background.gateway,
            bytes=self._input_size + len(text) + len(state.conversation) + more,
            body=text,
            input=lines,
        )

    def _change(
        self, state: ResponseEnd, text: str, hidden: ServerOnlyFields, events: bytes, more: Sequence[Record]
    ) -> bool:
        """Store the end of a background response with all its events; return False if its row has ended before.

        The client may have deleted it, or another gateway has marked it as failed, which a client may have seen.
        """
        return self._store.change_and_add(
            StoredResponse,
            self._id,
            {"status": list(ACTIVE)},
            [*more, StoredEvents(id=self._id, created_at=time.time(), data=events)],
            status=state.status,
            bytes=self._input_size + len(text) + len(state.conversation) + hidden.size + len(events),
            container_id=state.container_id,
            body=text,
            conversation=state.conversation,
        )
