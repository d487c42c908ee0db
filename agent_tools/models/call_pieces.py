"""The calls of one reply, joined from their pieces. Pure, and tolerant of servers.

Pieces name their call by an index, and by an id in its first piece. Servers deviate: they leave out either or both,
give every call index 0, every piece an id of its own, or repeat the name. They begin arguments with `{}`, repeat all
of them in the last piece, or leave a token of the model's template behind them.

Theory of operation. A piece goes to the call at its index, or to the latest one. A piece with a name begins another
call if its id is another one, or if it has no id and the arguments before it are a whole JSON object. An id of its
own is no sign of another call while the arguments are an unfinished object and the name is the same.

What comes after a whole object is kept to the end: a further object replaces `{}`, an equal one is dropped, and
so is a token. Anything else is part of the arguments, as the model wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent_tools.models.base import ArgumentsDelta, CallComplete, CallStarted, Delta, Json, new_call_id
from agent_tools.models.dialect.framing import behind_tokens
from agent_tools.models.reply_limits import MAX_NAME_CHARS, refuse_more_calls, too_large
from agent_tools.models.server_fields import ServerFields

_PART = re.compile(r'[{}\[\]"]|\\.?', re.DOTALL)
_GIVEN = ("arguments", "parameters", "input")
_OF_A_CALL = frozenset(("id", "type", "index", "function", "custom", "name", *_GIVEN))
_OF_A_FUNCTION = frozenset(("name", "index", *_GIVEN))
_SPACE = re.compile(r"\s*")
_EMPTY = re.compile(r"\s*\{\s*\}")
_DECODER = json.JSONDecoder(strict=False)


class ObjectEnd:
    """Detects, piece by piece, the end of a JSON object. Every character is read once.

    Attributes:
        is_whole: the object is written.
        is_text: what is written is no object.
    """

    def __init__(self) -> None:
        self.is_whole = self.is_text = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def feed(self, text: str) -> int:
        """Take a piece; return the place behind the object's end in it, or the piece's length."""
        if not self._depth and not self.is_whole:
            self.is_text = self.is_text or text.lstrip()[:1] not in ("", "{")
        if self.is_whole:
            return 0
        place, self._is_escaped = int(self._is_escaped and text != ""), self._is_escaped and not text
        for found in _PART.finditer(text, place) if not self.is_text else ():
            if found[0] == '"':
                self._in_string = not self._in_string
            elif found[0][0] == "\\":
                self._is_escaped = self._in_string and len(found[0]) == 1
            elif not self._in_string:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth <= 0:
                    self.is_whole = True
                    return found.end()
        return len(text)


@dataclass
class _PartialCall:
    """A call, as far as its pieces have arrived."""

    index: int
    position: object
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    is_begun: bool = False
    end: ObjectEnd = field(default_factory=ObjectEnd)
    size: int = 0  # characters of the arguments so far
    is_empty: bool = False  # the arguments are `{}`, and not reported yet
    untold: list[str] = field(default_factory=list)  # arguments that came before the name
    behind: list[str] = field(default_factory=list)  # what came after a whole object

    def add_name(self, piece: str) -> None:
        """Add a piece of the name: names come whole, in pieces, or whole again with every piece of the arguments."""
        if not self.is_begun and piece != self.name:
            self.name += piece
        if len(self.name) > MAX_NAME_CHARS:
            raise too_large(f"a name of more than {MAX_NAME_CHARS:,} characters")

    def begin(self) -> Iterator[Delta]:
        if not self.is_begun:
            self.is_begun = True
            self.id = self.id or new_call_id()
            yield CallStarted(self.index, self.id, self.name)
            if came := "".join(self.untold):
                yield ArgumentsDelta(self.index, came)

    def write(self, text: str) -> str:
        """Add a piece of the arguments, and return the text that is final by now."""
        if self.is_empty and text.lstrip().startswith("{"):
            self.arguments, self.behind, self.end, self.is_empty = [], [], ObjectEnd(), False
        place = 0
        if not self.end.is_whole:
            if self.arguments and len(text) > self.size and text.startswith(so_far := "".join(self.arguments)):
                text = text[self.size :] if so_far.lstrip().startswith("{") else text  # each piece repeats all so far
            place = self.end.feed(text)
            self.size += min(place, len(text))
            self.is_empty = not self.arguments and _EMPTY.fullmatch(text, 0, place) is not None
            self.arguments.append(text[:place])
        if place < len(text):
            self.behind.append(text[place:])
        return "" if self.is_empty else text[:place]

    def rest(self) -> str:
        """Return the rest of the arguments at the reply's end."""
        untold = "".join(self.arguments) if self.is_empty else ""
        behind = "".join(self.behind)
        if behind and not _is_repetition("".join(self.arguments), behind):
            self.arguments.append(behind)
            untold += behind
        return untold

    def is_over_before(self, name: str, id_: str, text: str) -> bool:
        """Return whether a piece at the same index, with this name, id and text, belongs to another call."""
        if not name or not (self.name or self.is_begun):
            return False
        if id_ and self.id and self.id != id_:
            return self.end.is_whole or self.end.is_text or name != self.name
        if not self.end.is_whole or (id_ and (id_ != self.id or not self.is_begun)):
            return False
        is_repeated = bool(id_) and len(text) >= self.size and text.strip() == "".join(self.arguments).strip()
        return name != self.name or (bool(text) and not is_repeated)


def _unknown(fields: object, known: frozenset[str]) -> dict[str, Any]:
    """Return the fields that have a value, and no meaning here."""
    given = fields.items() if isinstance(fields, Mapping) else ()
    return {str(name): value for name, value in given if name not in known and value is not None}


def _is_repetition(arguments: str, behind: str) -> bool:
    """Return whether the text after a whole object is the same object again, a token, or both."""
    same, place = arguments.strip(), _space(behind, 0)
    while behind.startswith(same, place):
        place = _space(behind, place + len(same))
    behind = behind[place:]
    if behind.startswith("[") and not _is_json(same):  # `{1, 2}` and `[KEY]` are code
        return False
    if behind.startswith("{"):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(behind)
            behind = behind[end:].lstrip() if value == _DECODER.decode(same) else behind
    return not behind[behind_tokens(behind, 0) :].strip("} \n")  # also of braces that are too many


def _is_json(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        _DECODER.decode(text)
        return True
    return False


def _space(text: str, place: int) -> int:
    """Return the place behind white space."""
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


class CallPieces:
    """Takes the pieces of a reply's calls; `more` takes unknown fields."""

    def __init__(self, more: ServerFields) -> None:
        self._more = more
        self.calls: list[_PartialCall] = []
        self._by_position: dict[object, _PartialCall] = {}
        self._by_id: dict[object, _PartialCall] = {}
        self._current: _PartialCall | None = None

    def add(self, piece: Json, taken: Callable[[str], str]) -> Iterator[Delta]:
        """Yield the deltas of a piece; `taken` counts its text, and returns it.

        Raises:
            ModelError: there are too many calls, or too much of one.
        """
        function = piece.get("function") or piece.get("custom") or piece
        if isinstance(function, str):  # its name, or all of it as JSON
            function = json.loads(function) if function[:1] == "{" else {**piece, "name": function}
        more = _unknown(piece, _OF_A_CALL)
        if function is not piece and (of_function := _unknown(function, _OF_A_FUNCTION)):
            more["function"] = of_function
        name, id_ = str(function.get("name") or ""), "" if piece.get("id") is None else str(piece["id"])
        arguments = next((function[key] for key in _GIVEN if function.get(key) is not None), None)
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        call = self._find(piece.get("index"), name, id_, text)
        if not call.id and id_:
            call.id = id_
            self._by_id.setdefault(id_, call)
        call.add_name(name)
        self._more.add(call.index, more)
        fragment = call.write(taken(text)) if text else ""
        if not call.name:
            call.untold.append(fragment)
        elif text or call.untold:
            yield from call.begin()
            if fragment:
                yield ArgumentsDelta(call.index, fragment)

    def finish(self) -> Iterator[Delta]:
        """Yield the ends of all calls; a call without a name and arguments is none."""
        self.calls = [call for call in self.calls if call.name or "".join(call.arguments).strip("{} \n")]
        for call in self.calls:
            yield from call.begin()
            if rest := call.rest():
                yield ArgumentsDelta(call.index, rest)
            yield CallComplete(call.index, call.id, call.name, "".join(call.arguments), self._more.of(call.index))

    def _find(self, position: object, name: str, id_: str, text: str) -> _PartialCall:
        """Return the call that a piece belongs to; a new one if there is none."""
        call = self._by_position.get(position)
        current = self._current
        if position is None:
            call = self._by_id.get(id_, current) if id_ else current
            is_head = name and not text and id_ not in self._by_id
            if call and ((name and call.is_begun and not id_) or (is_head and id_ and call.name)):
                call = None
        elif call is None and not name and not id_ and current and not current.end.is_whole:
            call = self._by_position[position] = current  # some servers count each piece of a call as another one
        if call is None or call.is_over_before(name, id_, text):
            refuse_more_calls(len(self.calls))
            call = self._by_position[position] = _PartialCall(len(self.calls), position)
            self.calls.append(call)
        self._current = call
        return call


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_ENDED = frozenset(
    (
        *("stop", "stopped", "eos", "eot", "eom", "end", "ended", "turn", "token", "id", "sequence", "natural", "ok"),
        *("success", "complete", "completed", "done", "finish", "finished", "reason", "tool", "tools", "call", "calls"),
        *("use", "function", "functions", "of", "model", "text", "string", "message"),
    )
)
_CUT = frozenset(("length", "max", "limit", "budget", "truncated", "exceeded"))
_FILTERED = frozenset(
    ("content", "filter", "filtered", "safety", "sensitive", "prohibited", "blocklist", "recitation", "spii", "refusal")
)


def finish_reason(given: object) -> str:
    """Return `stop`, `length` or `content_filter` for a finish reason in any spelling; '' for a failure's.

    A reason counts as good only if all its words say so: an unknown one may be a failure.
    """
    words = {word.lower() for word in _WORD.findall(given[:200])} if isinstance(given, str) else set()
    if words <= _ENDED:
        return "stop"
    if words & _CUT:
        return "length"
    return "content_filter" if words <= _FILTERED else ""
