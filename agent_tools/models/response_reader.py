"""Converts the events of a streamed response, or a whole one, into deltas. Pure, and tolerant of servers.

The format is https://platform.openai.com/docs/api-reference/responses-streaming. Servers leave out events: text and
calls that came in no delta are taken from the events that hold the whole of a part, of an item, or of the response.

The last event repeats the whole response. Some servers list a call there at another place and under another `call_id`
than in the stream, so a reply that has streamed any call gets no further call from the last event; that event only
completes calls that the stream began.

Reasoning that the server has encrypted goes with the message or the call after it, since it goes back before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Delta,
    Finish,
    Json,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from agent_tools.models.chunks import usage_of
from agent_tools.models.reply_limits import MAX_NAME_CHARS, refuse_more_calls, too_large
from agent_tools.models.server_errors import CONTEXT_TOO_LONG, failure_name
from agent_tools.models.server_fields import REASONING_ITEMS, ServerFields
from agent_tools.models.wire import is_encrypted

_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_ENDS = ("completed", "incomplete", "failed")
_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400, CONTEXT_TOO_LONG: 400}


class ResponseReader:
    """Reads a response's events, as dicts, in order. Of reasoning and its summary it yields the one that comes first.

    Attributes:
        is_over, is_complete: the last event has come.

    Raises:
        ModelError: the server failed, or sent more calls than a reply may have.
    """

    def __init__(self) -> None:
        self.is_over = self.is_complete = False
        self._calls: dict[Any, CallStarted] = {}  # by the places of their items
        self._has_spoken = False  # in this item
        self._has_answered = False  # anything at all, but reasoning and calls
        self._has_reasoned = False
        self._written: dict[int, list[str]] = {}  # arguments that came in deltas, by the indices of calls
        self._complete: set[Any] = set()  # the places of calls
        self._thinks_in = ""  # the event in which the reasoning of this item comes
        self._more = ServerFields()
        self._encrypted: list[Json] = []  # items of reasoning after which nothing has come
        self._known: set[str] = set()  # the content of all of them: the last event repeats it

    def read_whole(self, body: Json) -> Iterator[Delta]:
        """Yield the deltas of a response that did not come as a stream."""
        kind = body.get("status") or "completed"
        if kind not in _ENDS or (kind != "failed" and not isinstance(body.get("output"), list)):
            raise TypeError("no response that has ended")
        yield from self.read({"type": f"response.{kind}", "response": body})

    def finish(self) -> Iterator[Delta]:
        """Yield nothing: a stream's last event settles all."""
        return iter(())

    def read(self, event: Json) -> Iterator[Delta]:
        """Yield the deltas of one event."""
        for delta in self._deltas(event):
            self._has_spoken = self._has_spoken or isinstance(delta, TextDelta)
            self._has_answered = self._has_answered or isinstance(delta, TextDelta | RefusalDelta)
            self._has_reasoned = self._has_reasoned or isinstance(delta, ReasoningDelta)
            yield delta

    def _deltas(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "response.output_text.delta":
                yield TextDelta(_text(event, "delta"), _tokens(event))
            case "response.refusal.delta":
                yield RefusalDelta(_text(event, "delta"))
            case "response.output_text.done" if not self._has_spoken and event["text"]:
                yield TextDelta(_text(event, "text"), _tokens(event))
            case "response.refusal.done" if not self._has_spoken and event["refusal"]:
                yield RefusalDelta(_text(event, "refusal"))
            case "response.function_call_arguments.delta" if event["output_index"] in self._calls:
                index, text = self._calls[event["output_index"]].index, _text(event, "delta")
                self._written.setdefault(index, []).append(text)
                yield ArgumentsDelta(index, text)
            case "response.output_item.added":
                yield from self._begin(event["item"], event.get("output_index"))
            case "response.output_item.done":
                yield from self._end_item(event["item"], event.get("output_index"))
            case "response.completed" | "response.incomplete":
                yield from self._end(event["response"])
            case "response.failed" | "error":
                raise _failure(event.get("response", event).get("error") or event)
            case _:
                yield from self._reasoning(event)

    def _reasoning(self, event: Json) -> Iterator[Delta]:
        match event.get("type"):
            case "response.reasoning_summary_part.added" if event.get("summary_index") and self._thinks_in:
                yield ReasoningDelta("\n\n")
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" as kind:
                self._thinks_in = self._thinks_in or kind
                if kind == self._thinks_in:
                    yield ReasoningDelta(_text(event, "delta"))

    def _begin(self, item: Json, place: Any) -> Iterator[Delta]:
        self._has_spoken, self._thinks_in = False, ""
        if item["type"] == "function_call":
            refuse_more_calls(len(self._calls))
            begun = self._calls[_key(item, place)] = CallStarted(len(self._calls), *_named(item))
            self._keep_encrypted(begun.index)
            yield begun
        elif item["type"] == "message":
            self._keep_encrypted(None)

    def _keep_encrypted(self, holder: int | None) -> None:
        """Keep the reasoning before a call, by its index, or before a message (None)."""
        if self._encrypted:
            known = self._more.of(holder).get(REASONING_ITEMS, ())
            self._more.add(holder, {REASONING_ITEMS: (*known, *self._encrypted)})
            self._encrypted = []

    def _end_item(self, item: Json, place: Any) -> Iterator[Delta]:
        match item["type"]:
            case "function_call" if (key := _key(item, place)) not in self._complete:
                if key not in self._calls:
                    yield from self._begin(item, place)
                yield from self._complete_call(item, key)
            case "message":
                self._keep_encrypted(None)
                if not self._has_spoken:
                    yield from _said(item)
            case "reasoning":
                if is_encrypted(item) and item["encrypted_content"] not in self._known:
                    self._known.add(item["encrypted_content"])
                    self._encrypted.append(item)
                thought = "" if self._thinks_in else _joined(item.get("summary")) or _joined(item.get("content"))
                if thought:
                    yield ReasoningDelta(thought)
        self._has_spoken, self._thinks_in = False, ""

    def _complete_call(self, item: Json, key: Any) -> Iterator[Delta]:
        begun, arguments = self._calls[key], _text(item, "arguments")
        if arguments and begun.index not in self._written:
            yield ArgumentsDelta(begun.index, arguments)
        yield self._completed(key, arguments)

    def _completed(self, key: Any, arguments: str) -> CallComplete:
        self._complete.add(key)
        begun = self._calls[key]
        return CallComplete(begun.index, begun.id, begun.name, arguments, self._more.of(begun.index))

    def _end(self, response: Json) -> Iterator[Delta]:
        self.is_over = True
        output = response.get("output") or ()
        has_come = {"message": self._has_answered, "reasoning": self._has_reasoned, "function_call": bool(self._calls)}
        for item in output:
            if not has_come.get(item["type"]):
                yield from self._end_item(item, None)
            elif item["type"] == "function_call" and (key := self._begun_by(item)) is not None:
                yield from self._complete_call(item, key)
        for key in [key for key in self._calls if key not in self._complete]:
            yield self._completed(key, "".join(self._written.get(self._calls[key].index, ())))
        if usage := response.get("usage"):
            yield usage_of(usage)
        reason = str((response.get("incomplete_details") or {}).get("reason"))
        yield Finish(_REASONS.get(reason, "tool_calls" if self._calls else "stop"), self._more.of(None))

    def _begun_by(self, item: Json) -> Any:
        """Return the place of the streamed call that this item completes; None if all of that kind are complete."""
        id_, name = _named(item)
        open_ = [key for key in self._calls if key not in self._complete]
        same = [key for key in open_ if self._calls[key].id == id_]
        alike = [key for key in open_ if self._calls[key].name == name]
        return next(iter(same + alike), None)


def _key(call: Json, place: Any) -> Any:
    return call["call_id"] if place is None else place


def _said(item: Json) -> Iterator[Delta]:
    for part in item.get("content") or ():
        if part.get("text"):
            yield TextDelta(_text(part, "text"), _tokens(part))
        elif part.get("refusal"):
            yield RefusalDelta(_text(part, "refusal"))


def _named(call: Json) -> tuple[str, str]:
    name = _text(call, "name")
    if len(name) > MAX_NAME_CHARS:
        raise too_large(f"a name of more than {MAX_NAME_CHARS:,} characters")
    return _text(call, "call_id"), name


def _text(holder: Json, name: str) -> str:
    """Return a field that is a text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(text := holder[name], str):
        raise TypeError(f"{name} is no text")
    return text


def _tokens(holder: Json) -> tuple[Json, ...]:
    return tuple(each for each in holder.get("logprobs") or () if isinstance(each, Mapping))


def _joined(parts: Any) -> str:
    return "\n\n".join(_text(part, "text") for part in parts or () if part.get("text"))


def _failure(error: Json) -> ModelError:
    words = str(error.get("message") or "")
    code = failure_name(words, error.get("code"))
    status = _STATUSES.get(code or "")
    return ModelError("The model's server failed.", status, code, status == 429, words)
