"""The containers of conversations that are recognised by their fingerprints.

Theory of operation. When an answer ends, its fingerprints are stored with the container of its calls; '' if there was
none, so that a conversation without a container is never mistaken for one with a container. The next request is looked
up by its fingerprints, the most reliable first: items that the gateway made, calls of the client's functions, the
session that a header names, the `prompt_cache_key`, and last the whole text.

Ids that the gateway made, and sessions, identify a conversation: a client that sends them continues in its container,
also from an earlier point. Values that models and clients choose freely do not: two conversations may have the same
call ids, the same `prompt_cache_key`, the same text. Three rules distinguish them:

1. A fingerprint that two containers claim belongs to neither, for good.
2. A `prompt_cache_key` counts together with the text before the first answer, and only if the gateway gave one of the
answers. A second conversation with the same beginning and key ends that.
3. The first request that continues from an answer gets the container. The same request again, such as after a lost
connection, gets it too; a different request that continues from the same answer is another conversation, and gets its
own.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agent_tools.containers.failures import RowsAway
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.fingerprint import ConversationFingerprint, ConversationIdentity, Fingerprints
from agent_tools.gateway.store.records import StoredFingerprint
from agent_tools.gateway.store.store import Store

MAX_SESSION = 256  # characters of a session's id that count
NOTE_SECONDS = 30.0  # to wait for a note of another thread that is under way
RENEW_SECONDS = 86_400.0  # after which a fingerprint that comes again counts as new
MAX_UNNOTED = 1_000  # answers whose fingerprints wait for the database; the oldest are dropped
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundContainer:
    """The container of a conversation, '' if there is none; `was_lost` if its container is gone."""

    container_id: str = ""
    was_lost: bool = False


@dataclass(frozen=True, eq=False)
class _Note:
    """An answer's fingerprints, those of the answers before, and the conversation's container. It keeps no text."""

    owner: str
    before: tuple[str, ...]
    fingerprints: Fingerprints
    container_id: str


class RecognisedConversations:
    """Finds the containers of conversations, and stores their fingerprints. Thread-safe."""

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._change = threading.Condition()  # not locked during a query of the store
        self._unnoted: deque[_Note] = deque(maxlen=MAX_UNNOTED)
        self._being_noted: list[_Note] = []

    def of(
        self, identity: ConversationIdentity, entries: Iterable[Mapping[str, Any]], *, is_whole: bool = True
    ) -> ConversationFingerprint:
        """Return the conversation of a request. It `is_whole` if the request has the whole conversation."""
        has_text = is_whole and self._config.match_text
        return ConversationFingerprint.of(replace(identity, has_text=has_text), entries)

    def session(self, headers: Mapping[str, str]) -> str:
        """Return the session in a request's headers, '' without one."""
        for name in self._config.session_headers:
            if value := headers.get(name):
                return f"{name.lower()} {value[:MAX_SESSION]}"
        return ""

    # -- a request ----------------------------------------------------------------------------------------------------

    def find(self, conversation: ConversationFingerprint) -> FoundContainer:
        """Return the container of a conversation's earlier calls.

        Raises:
            RowsAway: the store cannot be read.
        """
        fingerprints = conversation.fingerprints
        self._wait_for_notes(fingerprints)
        rows = self._rows(
            (*fingerprints.items, *fingerprints.calls, fingerprints.session, fingerprints.cache, *fingerprints.answers)
        )
        sure = [rows[each] for each in (*fingerprints.items, *fingerprints.calls, fingerprints.session) if each in rows]
        was_lost = any(row.container_id is None for row in sure)
        if fingerprints.cache in rows and rows.keys() & set(fingerprints.answers):
            sure.append(rows[fingerprints.cache])
        elif fingerprints.cache in rows:  # another conversation begins
            self._store.change(StoredFingerprint, fingerprints.cache, container_id=None)
        container_id = next((row.container_id for row in sure if row.container_id), "")
        by_text = self._by_text(fingerprints, rows)
        if container_id:
            return FoundContainer(container_id)
        return by_text if by_text.container_id else FoundContainer(was_lost=was_lost or by_text.was_lost)

    def _by_text(self, fingerprints: Fingerprints, rows: Mapping[str, StoredFingerprint]) -> FoundContainer:
        """Take the container of the newest known answer, if this request is the first to continue from it."""
        row = next((rows[each] for each in fingerprints.answers if each in rows), None)
        if row is None or not row.container_id:
            return FoundContainer(was_lost=row is not None and row.container_id is None)
        claim = replace(row, id=_next(row.id), created_at=time.time(), asked=fingerprints.asked)
        first = claim if self._store.add_if_new(claim) else self._store.get(StoredFingerprint, claim.id)
        if first is None or first.asked != fingerprints.asked:
            return FoundContainer(was_lost=True)
        return FoundContainer(row.container_id)

    # -- its answer ---------------------------------------------------------------------------------------------------

    def record(
        self, conversation: ConversationFingerprint, answer: Iterable[Mapping[str, Any]], container_id: str
    ) -> None:
        """Store the fingerprints of an answer's items or messages; retry later if the store fails."""
        made = conversation.answered(answer)
        before = conversation.fingerprints.answers if made.cache else ()
        with self._change:
            if len(self._unnoted) == MAX_UNNOTED:
                _log.error("the database is unreachable: the container of a conversation will not be found again")
            self._unnoted.append(_Note(conversation.identity.owner, before, made, container_id))
        with suppress(RowsAway):
            self.record_again()

    def record_again(self) -> None:
        """Retry the notes that the store rejected before.

        Raises:
            RowsAway: it rejects them again.
        """
        while note := self._next_unnoted():
            is_noted = False
            try:
                is_start = not note.fingerprints.cache or not self._rows(note.before)
                latest = (
                    (note.fingerprints.session,) if is_start else (note.fingerprints.session, note.fingerprints.cache)
                )
                self._record(note.fingerprints, note.container_id, latest, note.owner)
                is_noted = True
            finally:
                self._settle(note, is_noted=is_noted)

    def _next_unnoted(self) -> _Note | None:
        with self._change:
            if not self._unnoted:
                return None
            note = self._unnoted.popleft()
            self._being_noted.append(note)
            return note

    def _settle(self, note: _Note, *, is_noted: bool) -> None:
        """Finish a note; a failed one is repeated after all others."""
        with self._change:
            self._being_noted.remove(note)
            if not is_noted:
                self._unnoted.append(note)
            self._change.notify_all()

    def _wait_for_notes(self, fingerprints: Fingerprints) -> None:
        """Wait for notes about these fingerprints that are under way, and repeat notes that the store rejected."""
        wanted = _all_of(fingerprints)

        def are_about(notes: Iterable[_Note]) -> bool:
            return any(_all_of(note.fingerprints) & wanted for note in notes)

        while True:
            with self._change:
                if not self._change.wait_for(lambda: not are_about(self._being_noted), NOTE_SECONDS):
                    raise RowsAway
                if not are_about(self._unnoted):
                    return
            self.record_again()

    def _record(self, fingerprints: Fingerprints, container_id: str, latest: tuple[str, ...], owner: str) -> None:
        """Store them; for the fingerprints in `latest`, the newest container counts."""
        first = (
            *fingerprints.calls,
            *fingerprints.answers,
            *((fingerprints.cache,) if fingerprints.cache not in latest else ()),
        )
        named = (*fingerprints.items, *latest) if container_id else ()  # one that needed none keeps what it had
        wanted = list(dict.fromkeys(filter(None, (*named, *first))))
        known = self._rows(wanted)
        now = time.time()
        fresh = [
            StoredFingerprint(id=each, owner=owner, created_at=now, container_id=container_id, asked="")
            for each in wanted
            if each not in known
        ]
        if not self._store.add_if_new(*fresh):  # another request has just noted one of them
            self._record(fingerprints, container_id, latest, owner)
            return
        for row in known.values():
            is_anothers = row.id == fingerprints.cache and row.id not in latest  # which began alike, perhaps just now
            if row.container_id is not None and (row.container_id != container_id or is_anothers):
                self._store.change(StoredFingerprint, row.id, container_id=container_id if row.id in latest else None)
            if row.created_at < now - RENEW_SECONDS:  # else a session that goes on is forgotten after `retention`
                self._store.change(StoredFingerprint, row.id, created_at=now)

    def _rows(self, fingerprints: Iterable[str]) -> dict[str, StoredFingerprint]:
        return {row.id: row for row in self._store.get_all(StoredFingerprint, list(filter(None, fingerprints)))}


def _all_of(fingerprints: Fingerprints) -> set[str]:
    """Return all fingerprints of a conversation."""
    return set(
        filter(
            None,
            (*fingerprints.items, *fingerprints.calls, *fingerprints.answers, fingerprints.session, fingerprints.cache),
        )
    )


def _next(fingerprint: str) -> str:
    """Return the fingerprint of a request that continues from an answer."""
    return hashlib.sha256(f"next {fingerprint}".encode()).hexdigest()
