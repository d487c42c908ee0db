"""The marks of a request and of its answer, by which the next request of the same conversation is known. Pure.

A mark is a digest of something a client sends back, together with the key that owns it: from it nothing can be read,
and no other key's request has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_MARKS = 64  # of one kind that are looked for or noted, the newest


@dataclass(frozen=True)
class Sender:
    """The facts of a request that set conversations apart.

    Attributes:
        owner: the key's.
        user: the client's own user, '' if it names none.
        session: a conversation's id from a header, '' without one.
        cache_key: the request's `prompt_cache_key`, '' without one.
        instructions: the system message beside the conversation.
        has_text: all that was said is in the request, and the conversation may be known by it.
    """

    owner: str
    user: str = ""
    session: str = ""
    cache_key: str = ""
    instructions: str = ""
    has_text: bool = True


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of each kind, the newest first; '' for one that there is none of.

    Attributes:
        items: of items that the gateway made, by their ids.
        calls: of calls of the client's functions, by id, name, arguments and the conversation's opening.
        cache: of the `prompt_cache_key` with the opening.
        answers: of all that was said up to each answer.
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
        """The marks by which its container is looked for."""
        said = digests(self._lines, self._seed)
        return self._marks(self.entries, said.opening, said.answers if self.sender.has_text else (), said.whole)

    def answered(self, answer: Iterable[Mapping[str, Any]]) -> Fingerprints:
        """Return the marks by which the next request will be known, from the items or messages of the answer."""
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


# The words of a conversation, in lines that are equal however a client sends them back. Pure.

PIECE = 65_536  # characters that are squeezed at once
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class Line:
    """Something said, by `system`, `user` or `assistant`; or a `call` of a client's function, or its `result`."""

    kind: str
    text: str

    @property
    def is_models(self) -> bool:
        """The model said it."""
        return self.kind in ("assistant", "call")


@dataclass(frozen=True)
class Digests:
    """The digests of a conversation: up to each answer of the model, the newest first, and of all of it.

    `opening` is what was said before the first answer.
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
    """Return the digests of a conversation; `seed` is what sets it apart besides its text."""
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
    """Leave white space out, piece by piece: a word is an object of many times its size."""
    pieces = range(0, len(text), PIECE)
    return "".join("".join(text[start : start + PIECE].split()) for start in pieces)


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return "(too deep)"
