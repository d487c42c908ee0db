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
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.records import StoredMark
from agent_tools.gateway.store.store import Store, StoreError

# The marks of a request and of its answer, by which the next request of the same conversation is known. Pure.
#
# A fingerprint is a digest of something a client sends back, together with the key that owns it: it reveals no text,
# and no request of another key matches it.

MAX_MARKS = 64  # newest ones of a kind that are looked up or stored


@dataclass(frozen=True)
class Sender:
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
    """A conversation as a request sends it: items or messages."""

    sender: Sender
    entries: tuple[Mapping[str, Any], ...]
    _lines: list[Line] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, sender: Sender, entries: Iterable[Mapping[str, Any]]) -> ConversationFingerprint:
        """Read a conversation, once."""
        entries = tuple(entries)
        lead = [Line("system", sender.instructions)] if sender.instructions else []
        return cls(sender, entries, [*lead, *lines_of(entries)])

    @property
    def marks(self) -> Fingerprints:
        """The fingerprints by which its container is looked up."""
        said = digests(self._lines, self._seed)
        return self._marks(self.entries, said.opening, said.answers if self.sender.has_text else (), said.whole)

    def answered(self, answer: Iterable[Mapping[str, Any]]) -> Fingerprints:
        """Return the fingerprints of the answer's items or messages, by which the next request is recognised."""
        entries = tuple(answer)
        lines = lines_of(entries)
        said = digests([*self._lines, *lines], self._seed)
        answers = said.answers[:1] if lines and self.sender.has_text else ()  # without lines it would be another's
        return self._marks(entries, said.opening, answers, said.whole)

    @property
    def _seed(self) -> str:
        return json.dumps([self.sender.user, self.sender.cache_key])

    def _marks(
        self, entries: tuple[Mapping[str, Any], ...], opening: str, answers: tuple[str, ...], whole: str
    ) -> Fingerprints:
        sender = self.sender
        items = [each["id"] for each in entries if isinstance(each.get("id"), str)]
        return Fingerprints(
            items=self._digests("item", reversed(items)),
            calls=self._digests("call", (f"{opening} {call}" for call in reversed(list(_calls(entries))))),
            session=self._digest("session", sender.session) if sender.session else "",
            cache=self._digest("cache", f"{opening} {sender.cache_key}")
            if sender.cache_key and sender.has_text
            else "",
            answers=self._digests("answer", answers),
            asked=self._digest("asked", whole),
        )

    def _digests(self, kind: str, values: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._digest(kind, value) for _, value in zip(range(MAX_MARKS), values))

    def _digest(self, kind: str, value: str) -> str:
        return hashlib.sha256(json.dumps([self.sender.owner, kind, value]).encode()).hexdigest()


def _calls(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calls of the client's functions, each with its id."""
    for entry in entries:
        if entry.get("type") in ("function_call", "custom_tool_call"):
            text = call_text(entry.get("name"), entry.get("arguments", entry.get("input")))
            yield f"{entry.get('call_id')} {text}"
        yield from (f"{id_} {text}" for id_, text in _tool_calls(entry))


# The text of a conversation in a normal form that does not depend on how a client sends it back. Pure.

PIECE = 65_536  # characters that are squeezed at once
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class Line:
    """A message of `system`, `user` or `assistant`; or a `call` of a client's function, or its `result`."""

    kind: str
    text: str

    @property
    def is_models(self) -> bool:
        """The model said it."""
        return self.kind in ("assistant", "call")


@dataclass(frozen=True)
class Digests:
    """The digests of a conversation: up to each answer of the model, the newest first, and of all of it.

    `opening` is the text before the first answer.
    """

    answers: tuple[str, ...]
    opening: str
    whole: str


def lines_of(entries: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Return the lines of items or messages; each run of the model's is its texts in one line, then its calls."""
    lines: list[Line] = []
    run: list[Line] = []
    for line in (each for entry in entries for each in _read(entry)):
        if line.is_models:
            run.append(line)
            continue
        lines += [*_joined(run), line]
        run = []
    return lines + _joined(run)


def digests(lines: Iterable[Line], seed: str) -> Digests:
    """Return the digests of a conversation; `seed` distinguishes conversations with the same text."""
    state = hashlib.sha256(seed.encode())
    answers: list[str] = []
    opening, was_models = "", False
    for line in lines:
        if line.is_models and not was_models:
            opening = opening or state.hexdigest()
        if was_models and not line.is_models:
            answers.append(state.hexdigest())
        was_models = line.is_models
        text = line.text.encode(errors="surrogatepass")
        state.update(b"%s %d\n%s\n" % (line.kind.encode(), len(text), text))
    whole = state.hexdigest()
    return Digests(tuple(reversed([*answers, *([whole] if was_models else [])])), opening or whole, whole)


def call_text(name: Any, arguments: Any) -> str:
    """Return a call in a form that does not depend on how its arguments are written as JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"{name} {_squeezed(arguments)}"
    return f"{name} {_canonical(arguments)}"


def _read(entry: Mapping[str, Any]) -> Iterator[Line]:
    match entry.get("type") or "message", entry.get("role"):
        case "message", "tool" | "function":
            yield Line("result", _text(entry.get("content")))
        case "message", "assistant":
            if text := _text(entry.get("content")):
                yield Line("assistant", text)
            yield from (Line("call", text) for _, text in _tool_calls(entry))
        case "message", role:
            kind = "system" if role in _SYSTEM else "user"
            yield Line(kind, _text(entry.get("content")))
        case "function_call" | "custom_tool_call", _:
            yield Line("call", call_text(entry.get("name"), entry.get("arguments", entry.get("input"))))
        case "function_call_output" | "custom_tool_call_output", _:
            yield Line("result", _text(entry.get("output")))


def _tool_calls(message: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the id and the text of each call in a message of chat completions."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield call.get("id"), call_text(function.get("name"), function.get("arguments"))


def _joined(run: list[Line]) -> list[Line]:
    text = "".join(line.text for line in run if line.kind == "assistant")
    return [*([Line("assistant", text)] if text else []), *(line for line in run if line.kind == "call")]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return _squeezed(content)
    if isinstance(content, list):
        return "".join(map(_part, content))
    return "" if content is None else _canonical(content)


def _part(part: Any) -> str:
    name = _TEXTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    text = part.get(name) if name else part
    return _squeezed(text) if isinstance(text, str) else _canonical(part)


def _squeezed(text: str) -> str:
    """Remove white space, piece by piece: a list of words would take many times the memory of the text."""
    pieces = range(0, len(text), PIECE)
    return "".join("".join(text[start : start + PIECE].split()) for start in pieces)


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return "(too deep)"


MAX_SESSION = 256  # characters of a session's id that count
MAX_UNNOTED = 1_000  # answers whose fingerprints wait for the database; the oldest are dropped
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recognised:
    """The container of a conversation, '' if there is none; `was_lost` if its container is gone."""

    container_id: str = ""
    was_lost: bool = False


@dataclass(frozen=True, eq=False)
class _Note:
    """An answer, its conversation, and the conversation's container."""

    conversation: ConversationFingerprint
    marks: Fingerprints
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
        self, sender: Sender, entries: Iterable[Mapping[str, Any]], *, is_whole: bool = True
    ) -> ConversationFingerprint:
        """Return the conversation of a request. It `is_whole` if the request has the whole conversation."""
        has_text = is_whole and self._config.match_text
        return ConversationFingerprint.of(replace(sender, has_text=has_text), entries)

    def session(self, headers: Mapping[str, str]) -> str:
        """Return the session in a request's headers, '' without one."""
        for name in self._config.session_headers:
            if value := headers.get(name):
                return f"{name.lower()} {value[:MAX_SESSION]}"
        return ""

    # -- a request ----------------------------------------------------------------------------------------------------

    def find(self, conversation: ConversationFingerprint) -> Recognised:
        """Return the container of a conversation's earlier calls.

        Raises:
            StoreError: the store cannot be read.
        """
        marks = conversation.marks
        self._wait_for_notes(marks)
        rows = self._rows((*marks.items, *marks.calls, marks.session, marks.cache, *marks.answers))
        sure = [rows[mark] for mark in (*marks.items, *marks.calls, marks.session) if mark in rows]
        was_lost = any(row.container_id is None for row in sure)
        if marks.cache in rows and rows.keys() & set(marks.answers):
            sure.append(rows[marks.cache])
        elif marks.cache in rows:  # another conversation begins
            self._store.change(StoredMark, marks.cache, container_id=None)
        container_id = next((row.container_id for row in sure if row.container_id), "")
        by_text = self._by_text(marks, rows)
        if container_id:
            return Recognised(container_id)
        return by_text if by_text.container_id else Recognised(was_lost=was_lost or by_text.was_lost)

    def _by_text(self, marks: Fingerprints, rows: Mapping[str, StoredMark]) -> Recognised:
        """Take the container of the newest known answer, if this request is the first to continue from it."""
        row = next((rows[mark] for mark in marks.answers if mark in rows), None)
        if row is None or not row.container_id:
            return Recognised(was_lost=row is not None and row.container_id is None)
        claim = replace(row, id=_next(row.id), created_at=time.time(), asked=marks.asked)
        first = claim if self._store.add_if_new(claim) else self._store.get(StoredMark, claim.id)
        if first is None or first.asked != marks.asked:
            return Recognised(was_lost=True)
        return Recognised(row.container_id)

    # -- its answer ---------------------------------------------------------------------------------------------------

    def note(
        self, conversation: ConversationFingerprint, answer: Iterable[Mapping[str, Any]], container_id: str
    ) -> None:
        """Store the fingerprints of an answer's items or messages; retry later if the store fails."""
        with self._change:
            if len(self._unnoted) == MAX_UNNOTED:
                _log.error("the database is unreachable: the container of a conversation will not be found again")
            self._unnoted.append(_Note(conversation, conversation.answered(answer), container_id))
        with suppress(StoreError):
            self.note_again()

    def note_again(self) -> None:
        """Retry the notes that the store rejected before.

        Raises:
            StoreError: it rejects them again.
        """
        while note := self._next_unnoted():
            is_noted = False
            try:
                is_start = not note.marks.cache or not self._rows(note.conversation.marks.answers)
                latest = (note.marks.session,) if is_start else (note.marks.session, note.marks.cache)
                self._note(note.marks, note.container_id, latest, note.conversation.sender.owner)
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

    def _wait_for_notes(self, marks: Fingerprints) -> None:
        """Wait for notes about these fingerprints that are under way, and repeat notes that the store rejected."""
        wanted = _all_of(marks)

        def are_about(notes: Iterable[_Note]) -> bool:
            return any(_all_of(note.marks) & wanted for note in notes)

        while True:
            with self._change:
                self._change.wait_for(lambda: not are_about(self._being_noted))
                if not are_about(self._unnoted):
                    return
            self.note_again()

    def _note(self, marks: Fingerprints, container_id: str, latest: tuple[str, ...], owner: str) -> None:
        """Store them; for the fingerprints in `latest`, the newest container counts."""
        first = (*marks.calls, *marks.answers, *((marks.cache,) if marks.cache not in latest else ()))
        named = (*marks.items, *latest) if container_id else ()  # one that needed none keeps what it had
        wanted = list(dict.fromkeys(filter(None, (*named, *first))))
        known = self._rows(wanted)
        now = time.time()
        fresh = [
            StoredMark(id=mark, owner=owner, created_at=now, container_id=container_id, asked="")
            for mark in wanted
            if mark not in known
        ]
        if not self._store.add_if_new(*fresh):  # another request has just noted one of them
            self._note(marks, container_id, latest, owner)
            return
        for row in known.values():
            is_anothers = row.id == marks.cache and row.id not in latest  # which began alike, perhaps just now
            if row.container_id is not None and (row.container_id != container_id or is_anothers):
                self._store.change(StoredMark, row.id, container_id=container_id if row.id in latest else None)

    def _rows(self, marks: Iterable[str]) -> dict[str, StoredMark]:
        return {row.id: row for row in self._store.get_all(StoredMark, [mark for mark in marks if mark])}


def _all_of(marks: Fingerprints) -> set[str]:
    """Return all fingerprints of a conversation."""
    return set(filter(None, (*marks.items, *marks.calls, *marks.answers, marks.session, marks.cache)))


def _next(mark: str) -> str:
    """Return the fingerprint of a request that continues from an answer."""
    return hashlib.sha256(f"next {mark}".encode()).hexdigest()
