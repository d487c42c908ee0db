"""The chunks of a chat completion, from a turn's steps, and the whole that they add up to. Pure.

The fields are those of https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from agent_tools.agents.steps import CallRunning, Finished, ReasoningDelta, RefusalDelta, RoundDone, Step, TextDelta
from agent_tools.containers.ids import new_id
from agent_tools.models.base import Json, JsonObject, Usage
from agent_tools.models.server_fields import SERVER_FIELDS_KNOWN
from agent_tools.models.wire import wire_messages, wire_usage, with_server_fields

Chunk = JsonObject
_REASONS = {"pending": "tool_calls", "rounds": "length", "deadline": "length", "cancelled": "stop"}


class ChatComposer:
    """Turns steps into chunks; `completion` is the whole, once the turn is finished."""

    def __init__(self, model: str, with_usage: bool, with_logprobs: bool = False) -> None:
        head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        self._chunk = {**head, "object": "chat.completion.chunk"}
        self._head = {**head, "object": "chat.completion"}
        self._with_usage = with_usage
        self._with_logprobs = with_logprobs
        self._logprobs: list[Json] = []
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._ends_paragraph = False
        self._said: JsonObject = {}  # the model's latest message, with the fields of its server
        self._more: JsonObject = {}
        self.completion: JsonObject = {}

    def begin(self) -> Iterator[Chunk]:
        """Yield the first chunk."""
        yield self._of({"role": "assistant", "content": ""})

    def feed(self, step: Step) -> Iterator[Chunk]:
        """Yield the chunks of a step."""
        match step:
            case RefusalDelta(text):
                self._refusal.append(text)
                yield self._of({"refusal": text})
            case TextDelta(text, logprobs):
                if self._ends_paragraph and self._text:
                    text = f"\n\n{text}"
                self._ends_paragraph = False
                self._text.append(text)
                self._logprobs += logprobs
                yield self._of({"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                self._reasoning.append(text)
                yield self._of({"reasoning_content": text})
            case RoundDone(messages=messages):
                self._said = next(iter(with_server_fields(wire_messages(messages), str(self._head["model"]))), {})
            case CallRunning():
                self._ends_paragraph = True
            case Finished():
                yield from self._finish(step)

    def _finish(self, step: Finished) -> Iterator[Chunk]:
        pending = {call.id for call in step.pending}
        calls = [call for call in self._said.get("tool_calls") or () if call["id"] in pending]
        self._more = {name: self._said[name] for name in SERVER_FIELDS_KNOWN if name in self._said}
        if self._more:  # the client sends them back with the message
            yield self._of(self._more)
        if calls:
            yield self._of({"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]})
        known = step.reason in ("stop", "length", "content_filter", "tool_calls")
        reason = step.reason if known else _REASONS.get(step.reason, "stop")
        self.completion = self._completion(calls, reason, step.usage)
        yield self._of({}, reason)
        if self._with_usage:
            yield {**self._chunk, "choices": [], "usage": wire_usage(step.usage)}

    def _completion(self, calls: list[JsonObject], reason: str, usage: Usage) -> JsonObject:
        text, refusal = "".join(self._text), "".join(self._refusal) or None
        content = text or (None if calls or refusal else "")
        message: JsonObject = {"role": "assistant", "content": content, "refusal": refusal}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        message |= self._more
        if calls:
            message["tool_calls"] = calls
        logprobs = self._shown(self._logprobs)
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}
        return {**self._head, "choices": [choice], "usage": wire_usage(usage)}

    def _of(self, delta: JsonObject, reason: str | None = None, logprobs: Sequence[Json] = ()) -> Chunk:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": self._shown(logprobs)}
        return {**self._chunk, "choices": [choice]}

    def _shown(self, logprobs: Sequence[Json]) -> JsonObject | None:
        return {"content": list(logprobs), "refusal": None} if logprobs and self._with_logprobs else None
