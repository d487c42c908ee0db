"""The chunks of a streamed chat completion, read into deltas. Pure, and generous to servers.

The format is https://platform.openai.com/docs/api-reference/chat-streaming. Servers deviate from it: they leave out
ids, indexes and usage, split names or repeat them, send arguments as objects, and have two names for reasoning.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent_tools.models.base import (
    ArgumentsDelta,
    CallBegun,
    CallComplete,
    Delta,
    Finish,
    Json,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from agent_tools.models.bounds import MAX_NAME_CHARS, MAX_REPLY_BYTES, MAX_TOKENS, refuse_more_calls, too_large


@dataclass
class _PartialCall:
    """A call, as far as its pieces have arrived."""

    index: int
    position: object
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    is_begun: bool = False

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
            yield CallBegun(self.index, self.id, self.name)


class ChunkReader:
    """Reads the chunks of one reply, as dicts, in order; `finish` yields the deltas that only its end can settle.

    `limit` is the number of characters it takes, those of calls to unknown functions included. The connection has
    counted the bytes before.

    Raises:
        ModelError: the reply is too large; see bounds.py.
    """

    def __init__(self, limit: int = MAX_REPLY_BYTES) -> None:
        self.reason: str | None = None  # the finish reason, once the server has given it
        self._limit = self._left = limit
        self._calls: list[_PartialCall] = []
        self._by_position: dict[object, _PartialCall] = {}
        self._by_id: dict[object, _PartialCall] = {}
        self._current: _PartialCall | None = None
        self._usage: Usage | None = None

    def read(self, chunk: Json) -> Iterator[Delta]:
        """Yield the deltas of one chunk."""
        if chunk.get("usage"):
            self._usage = usage_of(chunk["usage"])  # the last one counts: some servers send it with every chunk
        for choice in chunk.get("choices") or ():
            if not choice.get("index"):
                yield from self._choice(choice)

    def finish(self) -> Iterator[Delta]:
        """Yield the ends of all calls, usage if the server sent it, and the finish reason."""
        for call in self._calls:
            yield from call.begin()
            yield CallComplete(call.index, call.id, call.name, "".join(call.arguments))
        if self._usage:
            yield self._usage
        yield Finish(self.reason or ("tool_calls" if self._calls else "stop"))

    def _choice(self, choice: Json) -> Iterator[Delta]:
        delta = choice.get("delta") or choice.get("message") or {}
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield ReasoningDelta(self._taken(str(reasoning)))
        if text := delta.get("content") or delta.get("refusal"):
            yield TextDelta(self._taken(str(text)))
        for piece in delta.get("tool_calls") or ():
            yield from self._call(piece)
        if delta.get("function_call"):  # how calls were sent before tools
            yield from self._call({"function": delta["function_call"]})
        self.reason = choice.get("finish_reason") or self.reason

    def _call(self, piece: Json) -> Iterator[Delta]:
        function = piece.get("function") or {}
        call = self._find(piece, bool(function.get("name")))
        if not call.id and piece.get("id"):
            call.id = str(piece["id"])
            self._by_id.setdefault(call.id, call)
        call.add_name(str(function.get("name") or ""))
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments)
        if text:
            yield from call.begin()
            call.arguments.append(self._taken(text))
            yield ArgumentsDelta(call.index, text)

    def _find(self, piece: Json, is_named: bool) -> _PartialCall:
        """Return the call that a piece belongs to, by its index, or by id and name where that is missing or reused."""
        position, id_ = piece.get("index"), piece.get("id")
        call = self._by_position.get(position)
        if position is None:
            call = self._by_id.get(str(id_), self._current) if id_ else self._current
        if call and is_named and (_is_other_id(call, id_) or (position is None and call.is_begun and not id_)):
            call = None
        if call is None:
            refuse_more_calls(len(self._calls))
            call = self._by_position[position] = _PartialCall(len(self._calls), position)
            self._calls.append(call)
        self._current = call
        return call

    def _taken(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise too_large(f"more than {self._limit:,} bytes")
        return text


def usage_of(usage: object, read: str = "prompt_tokens", written: str = "completion_tokens") -> Usage:
    """Read tokens from a `usage` object, under an API's names for them; a missing or malformed number is 0."""
    return Usage(
        _tokens(usage, read),
        _tokens(usage, written),
        _tokens(_inner(usage, f"{read}_details"), "cached_tokens"),
        _tokens(_inner(usage, f"{written}_details"), "reasoning_tokens"),
    )


def _inner(counts: object, name: str) -> object:
    return counts.get(name) if isinstance(counts, Mapping) else None


def _tokens(counts: object, name: str) -> int:
    number = _inner(counts, name)
    return number if type(number) is int and 0 <= number <= MAX_TOKENS else 0


def new_call_id() -> str:
    """Return an id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"


def _is_other_id(call: _PartialCall, id_: object) -> bool:
    return bool(id_ and call.id and call.id != id_)
