"""The replies of a scripted model, as values and as the chunks of a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Delta,
    Finish,
    Json,
    JsonObject,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from agent_tools.models.wire import wire_usage


@dataclass(frozen=True)
class ScriptedCall:
    """A call that the model makes. Arguments in a dict are written as JSON; without an `id` it gets `call_<index>`."""

    name: str
    arguments: str | Json = ""
    id: str | None = None

    @property
    def text(self) -> str:
        """Return the arguments as the model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class ScriptedReply:
    """One reply of a scripted model, with the manner of its delivery.

    Attributes:
        text, reasoning, calls, refusal: the content of the reply.
        usage: the tokens it reports; None leaves them out.
        finish_reason: by default `tool_calls` if there are calls, else `stop`.
        piece: characters in one delta; 0 puts all into one.
        status: an HTTP status other than 200 makes the reply an error (of the server; a `ModelError` of the model).
        error: the error's `message`; with status 200, an error in the stream, after the whole content.
        headers: further HTTP headers.
        wait_before: an event waited for before the first byte.
        wait_midway: an event waited for once half of the chunks are sent.
        cut_after: the number of chunks before the connection is cut; None sends all.
        chunks: chunks that are sent as they are, instead of those made of the content; for deviating servers.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ScriptedCall] = ()
    refusal: str = ""
    usage: Usage | None = Usage(10, 5)  # noqa: RUF009  (frozen)
    finish_reason: str | None = None
    piece: int = 0
    status: int = 200
    error: str = ""
    headers: Mapping[str, str] | None = None
    wait_before: threading.Event | None = None
    wait_midway: threading.Event | None = None
    cut_after: int | None = None
    chunks: Sequence[Json] | None = None

    @property
    def reason(self) -> str:
        """Return the finish reason."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    def deltas(self) -> Iterator[Delta]:
        """Yield the reply as a model's deltas."""
        yield from (ReasoningDelta(piece) for piece in self._pieces(self.reasoning))
        yield from (TextDelta(piece) for piece in self._pieces(self.text))
        yield from (RefusalDelta(piece) for piece in self._pieces(self.refusal))
        for index, call in enumerate(self.calls):
            id_ = call.id or f"call_{index}"
            yield CallStarted(index, id_, call.name)
            yield from (ArgumentsDelta(index, piece) for piece in self._pieces(call.text))
            yield CallComplete(index, id_, call.name, call.text)
        if self.usage:
            yield self.usage
        yield Finish(self.reason)

    def message(self) -> JsonObject:
        """Return the reply as one message of chat completions."""
        message: JsonObject = {"role": "assistant", "content": self.text or None}
        if self.refusal:
            message["refusal"] = self.refusal
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for index, call in enumerate(self.calls)
            ]
        return message

    def wire_chunks(self) -> Iterator[Json]:
        """Yield the reply as the chunks of a stream; the last has the usage."""
        if self.chunks is not None:
            yield from self.chunks
            return
        yield _chunk({"role": "assistant", "content": ""})
        for delta in self.deltas():
            match delta:
                case RefusalDelta(text):
                    yield _chunk({"refusal": text})
                case TextDelta(text):
                    yield _chunk({"content": text})
                case ReasoningDelta(text):
                    yield _chunk({"reasoning_content": text})
                case CallStarted(index, id_, name):
                    yield _call_chunk(index, {"name": name, "arguments": ""}, {"id": id_, "type": "function"})
                case ArgumentsDelta(index, text):
                    yield _call_chunk(index, {"arguments": text}, {})
                case Finish(reason):
                    yield _chunk({}, reason)
        if self.usage:
            yield {"choices": [], "usage": wire_usage(self.usage)}

    def _pieces(self, text: str) -> list[str]:
        size = self.piece or max(1, len(text))
        return [text[start : start + size] for start in range(0, len(text), size)]


Script = Union[ScriptedReply, str, Sequence[Union[ScriptedReply, str]], Callable[[JsonObject], ScriptedReply]]
"""Replies in order, where a text stands for a reply, or a function that returns the reply to a request (a dict)."""


class Replies:
    """Hands out the replies of a script. For any thread."""

    def __init__(self, script: Script) -> None:
        self._function = script if callable(script) else None
        listed = [script] if isinstance(script, (str, ScriptedReply)) else [] if callable(script) else list(script)
        self._left = [ScriptedReply(text=each) if isinstance(each, str) else each for each in listed]
        self._lock = threading.Lock()

    def next(self, request: JsonObject) -> ScriptedReply:
        """Return the reply to a request; an error once the script is used up."""
        if self._function is not None:
            return self._function(request)
        with self._lock:
            return self._left.pop(0) if self._left else ScriptedReply(status=500, error="The script is used up.")


def _chunk(delta: JsonObject, reason: str | None = None) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _call_chunk(index: int, function: JsonObject, more: JsonObject) -> JsonObject:
    return _chunk({"tool_calls": [{"index": index, **more, "function": function}]})
