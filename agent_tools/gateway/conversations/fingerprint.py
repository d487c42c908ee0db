"""The fingerprints of a request and of its answer, by which the next request of the same conversation is known. Pure.

A fingerprint is a digest of something a client sends back, together with the key that owns it: it reveals no text,
and no request of another key matches it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_tools.gateway.conversations.normal_form import Line, call_text, digests, lines_of, tool_calls_in

MAX_FINGERPRINTS = 64  # newest ones of a kind that are looked up or stored


@dataclass(frozen=True)
class ConversationIdentity:
    """The facts of a request that distinguish conversations.

    Attributes:
        owner: the key's.
        user: the client's own user, '' if it names none.
        session: a conversation's id from a header, '' without one.
        cache_key: the request's `prompt_cache_key`, '' without one.
        instructions: the system message beside the conversation.
        has_text: the request has the whole conversation, which may be recognised by its text.
    """

    owner: str
    user: str = ""
    session: str = ""
    cache_key: str = ""
    instructions: str = ""
    has_text: bool = True


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of each kind, the newest first; '' for a missing one.

    Attributes:
        items: of items that the gateway made, by their ids.
        calls: of calls of the client's functions, by id, name, arguments and the conversation's opening.
        cache: of the `prompt_cache_key` with the opening.
        answers: of the whole text up to each answer.
        asked: of the whole request.
    """

    items: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    session: str = ""
    cache: str = ""
    answers: tuple[str, ...] = ()
    asked: str = ""


@dataclass(frozen=True)
class ConversationFingerprint:
    """A conversation as a request sends it: items or messages.

    Attributes:
        fingerprints: those by which its container is looked up; no `cached_property`, which has one lock for all
            conversations before Python 3.12.
    """

    identity: ConversationIdentity
    entries: tuple[Mapping[str, Any], ...]
    _lines: list[Line] = field(default_factory=list, repr=False)
    fingerprints: Fingerprints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text_digests = digests(self._lines, self._seed)
        answers = text_digests.answers if self.identity.has_text else ()
        fingerprints = self._fingerprints(self.entries, text_digests.opening, answers, text_digests.whole)
        object.__setattr__(self, "fingerprints", fingerprints)

    @classmethod
    def of(cls, identity: ConversationIdentity, entries: Iterable[Mapping[str, Any]]) -> ConversationFingerprint:
        """Read a conversation, once."""
        entries = tuple(entries)
        lead = [Line("system", identity.instructions)] if identity.instructions else []
        return cls(identity, entries, [*lead, *lines_of(entries)])

    def answered(self, answer: Iterable[Mapping[str, Any]]) -> Fingerprints:
        """Return the fingerprints of the answer's items or messages, by which the next request is recognised."""
        entries = tuple(answer)
        lines = lines_of(entries)
        text_digests = digests([*self._lines, *lines], self._seed)
        answers = (
            text_digests.answers[:1] if lines and self.identity.has_text else ()
        )  # without lines it would be another's
        return self._fingerprints(entries, text_digests.opening, answers, text_digests.whole)

    @property
    def _seed(self) -> str:
        return json.dumps([self.identity.user, self.identity.cache_key])

    def _fingerprints(
        self, entries: tuple[Mapping[str, Any], ...], opening: str, answers: tuple[str, ...], whole: str
    ) -> Fingerprints:
        identity = self.identity
        items = [each["id"] for each in entries if isinstance(each.get("id"), str)]
        return Fingerprints(
            items=self._digests("item", reversed(items)),
            calls=self._digests("call", (f"{opening} {call}" for call in reversed(list(_calls(entries))))),
            session=self._digest("session", identity.session) if identity.session else "",
            cache=self._digest("cache", f"{opening} {identity.cache_key}")
            if identity.cache_key and identity.has_text
            else "",
            answers=self._digests("answer", answers),
            asked=self._digest("asked", whole),
        )

    def _digests(self, kind: str, values: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._digest(kind, value) for _, value in zip(range(MAX_FINGERPRINTS), values))

    def _digest(self, kind: str, value: str) -> str:
        return hashlib.sha256(json.dumps([self.identity.owner, kind, value]).encode()).hexdigest()


def _calls(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calls of the client's functions, each with its id."""
    for entry in entries:
        if entry.get("type") in ("function_call", "custom_tool_call"):
            text = call_text(entry.get("name"), entry.get("arguments", entry.get("input")))
            yield f"{entry.get('call_id')} {text}"
        yield from (f"{id_} {text}" for id_, text in tool_calls_in(entry))
