"""The events of a message of Anthropic's API, from a turn's steps, and the message that they add up to. Pure.

The events are those of https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from agent_tools.agents.steps import Call, Finished, ReasoningDelta, RefusalDelta, RoundDone, Step, TextDelta
from agent_tools.bodies.json_body import BodyRefused, parsed_text
from agent_tools.containers.ids import new_id
from agent_tools.models.base import JsonObject, Usage

_REASONS = {"pending": "tool_use", "tool_calls": "end_turn", "content_filter": "refusal"}
_CUT = ("length", "rounds", "deadline")


class MessageComposer:
    """Turns steps into events; `message` is the whole, once the turn is finished."""

    def __init__(self, model: str, *, shows_thinking: bool) -> None:
        self._head: JsonObject = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": model}
        self._shows_thinking = shows_thinking
        self._content: list[JsonObject] = []
        self._open = ""  # the kind of the block that is being written
        self._pieces: list[str] = []
        self._has_refused = False
        self.message: JsonObject = {}

    def begin(self) -> Iterator[JsonObject]:
        """Yield the first event."""
        yield {"type": "message_start", "message": self._whole(None, Usage(), [])}

    def feed(self, step: Step) -> Iterator[JsonObject]:
        """Yield the events of a step."""
        match step:
            case TextDelta(text):
                self._has_refused |= isinstance(step, RefusalDelta)
                yield from self._write("text", text)
            case ReasoningDelta(text) if self._shows_thinking:
                yield from self._write("thinking", text)
            case RoundDone():
                yield from self._close()
            case Finished():
                yield from self._finish(step)

    def _write(self, kind: str, text: str) -> Iterator[JsonObject]:
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield self._event("start", content_block=self._spoken())
        self._pieces.append(text)
        yield self._event("delta", delta={"type": f"{kind}_delta", kind: text})

    def _close(self) -> Iterator[JsonObject]:
        if self._open:
            yield from self._stop(self._spoken())
            self._open, self._pieces = "", []

    def _spoken(self) -> JsonObject:
        signed = {"signature": ""} if self._open == "thinking" else {}
        return {"type": self._open, self._open: "".join(self._pieces), **signed}

    def _finish(self, step: Finished) -> Iterator[JsonObject]:
        yield from self._close()
        for call in step.pending:
            use: JsonObject = {"type": "tool_use", "id": call.id, "name": call.name}
            given = _input(call)
            yield self._event("start", content_block={**use, "input": {}})
            written = json.dumps(given, ensure_ascii=False)
            yield self._event("delta", delta={"type": "input_json_delta", "partial_json": written})
            yield from self._stop({**use, "input": given})
        reason = "max_tokens" if step.reason in _CUT else _REASONS.get(step.reason, "end_turn")
        reason = "refusal" if self._has_refused and not step.pending else reason
        self.message = self._whole(reason, step.usage, self._content)
        ended = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": self.message["usage"]}
        yield {"type": "message_stop"}

    def _event(self, kind: str, **fields: JsonObject) -> JsonObject:
        return {"type": f"content_block_{kind}", "index": len(self._content), **fields}

    def _stop(self, block: JsonObject) -> Iterator[JsonObject]:
        yield self._event("stop")
        self._content.append(block)

    def _whole(self, reason: str | None, usage: Usage, content: list[JsonObject]) -> JsonObject:
        counted = {
            "input_tokens": max(0, usage.input_tokens - usage.cached_tokens),
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
        }
        return {**self._head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": counted}


def _input(call: Call) -> JsonObject:
    """Return a call's arguments as an object; others stand under one name, so that the client names what is missing."""
    try:
        given = parsed_text(call.arguments)
    except BodyRefused:
        given = call.arguments
    return given if isinstance(given, dict) else {"arguments": given}
