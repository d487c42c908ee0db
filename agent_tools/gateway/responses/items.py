"""The items of a response while they are made: each yields the events by which it grows. Pure.

Events lack their sequence number and output index, which the composer adds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from agent_tools.containers.records import new_id
from agent_tools.gateway.responses.outputs import Citation, Image, Logs, shown_logprobs
from agent_tools.models.base import Json, JsonObject

Event = JsonObject
_CALL = "response.code_interpreter_call"


class Item:
    """An unfinished item. `value` is its JSON in the response's output, at `index`."""

    def __init__(self, value: JsonObject) -> None:
        self.value = value
        self.index = 0
        self.is_done = False

    @property
    def id(self) -> str:
        """The item's id."""
        return str(self.value["id"])

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item."""
        yield {"type": "response.output_item.added", "item": copy.deepcopy(self.value)}

    def done(self, status: str = "completed") -> Iterator[Event]:
        """Yield the events of a finished item."""
        if not self.is_done:
            self.is_done = True
            if "status" in self.value:
                self.value["status"] = status
            yield from self._closing()
            yield {"type": "response.output_item.done", "item": copy.deepcopy(self.value)}

    def _closing(self) -> Iterator[Event]:
        return iter(())

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, **fields}


class ReasoningItem(Item):
    """A model's reasoning: its content, or, for clients that ask for one, its summary, which is the same text.

    With `seal`, it also has the text as `encrypted_content`, which the client sends back.
    """

    def __init__(self, as_summary: bool = False, seal: Callable[[str], str] | None = None) -> None:
        value = {"id": new_id("rs"), "type": "reasoning", "summary": []}
        super().__init__({**value, **({} if as_summary else {"content": []}), "status": "in_progress"})
        self._as_summary = as_summary
        self._seal = seal
        self._text = ""

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item with an empty part."""
        yield from super().added()
        if self._as_summary:
            yield self._event("response.reasoning_summary_part.added", summary_index=0, part=_summary(""))
        else:
            yield self._event("response.content_part.added", content_index=0, part=_thought(""))

    def write(self, text: str) -> Iterator[Event]:
        """Append to the reasoning."""
        self._text += text
        if self._as_summary:
            yield self._event("response.reasoning_summary_text.delta", summary_index=0, delta=text)
        else:
            yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def _closing(self) -> Iterator[Event]:
        if self._seal:
            self.value["encrypted_content"] = self._seal(self._text)
        if self._as_summary:
            self.value["summary"] = [_summary(self._text)]
            yield self._event("response.reasoning_summary_text.done", summary_index=0, text=self._text)
            yield self._event("response.reasoning_summary_part.done", summary_index=0, part=_summary(self._text))
            return
        self.value["content"] = [_thought(self._text)]
        yield self._event("response.reasoning_text.done", content_index=0, text=self._text)
        yield self._event("response.content_part.done", content_index=0, part=_thought(self._text))


class MessageItem(Item):
    """A model's message. `annotations` are set before it is done."""

    def __init__(self) -> None:
        value = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        super().__init__(value)
        self.text = ""
        self.logprobs: list[Json] = []
        self.annotations: list[Citation] = []

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item with an empty part."""
        yield from super().added()
        yield self._event("response.content_part.added", content_index=0, part=_said("", []))

    def write(self, text: str, logprobs: Sequence[Json] = ()) -> Iterator[Event]:
        """Append to the text; `logprobs` are those of its tokens that are shown."""
        self.text += text
        self.logprobs += logprobs
        shown = shown_logprobs(logprobs, with_bytes=False)
        yield self._event("response.output_text.delta", content_index=0, delta=text, logprobs=shown)

    def _closing(self) -> Iterator[Event]:
        for index, annotation in enumerate(self.annotations):
            kind = "response.output_text.annotation.added"
            yield self._event(kind, content_index=0, annotation_index=index, annotation=annotation.json)
        part = _said(self.text, self.annotations, shown_logprobs(self.logprobs, with_bytes=True))
        self.value["content"] = [part]
        shown = shown_logprobs(self.logprobs, with_bytes=False)
        yield self._event("response.output_text.done", content_index=0, text=self.text, logprobs=shown)
        yield self._event("response.content_part.done", content_index=0, part=part)


class RefusalItem(Item):
    """A model's message in which it refuses to answer."""

    def __init__(self) -> None:
        value = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        super().__init__(value)
        self._text = ""

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item with an empty part."""
        yield from super().added()
        yield self._event("response.content_part.added", content_index=0, part=_refused(""))

    def write(self, text: str) -> Iterator[Event]:
        """Append to the refusal."""
        self._text += text
        yield self._event("response.refusal.delta", content_index=0, delta=text)

    def _closing(self) -> Iterator[Event]:
        self.value["content"] = [_refused(self._text)]
        yield self._event("response.refusal.done", content_index=0, refusal=self._text)
        yield self._event("response.content_part.done", content_index=0, part=_refused(self._text))


class CodeItem(Item):
    """A call of the code interpreter. With `shows_outputs`, its outputs are in the response."""

    def __init__(self, container_id: str, shows_outputs: bool) -> None:
        self._shows_outputs = shows_outputs
        super().__init__(
            {
                "id": new_id("ci"),
                "type": "code_interpreter_call",
                "status": "in_progress",
                "code": "",
                "container_id": container_id,
                "outputs": [] if shows_outputs else None,
            }
        )
        self._is_running = False

    def added(self) -> Iterator[Event]:
        """Yield the events of a new call."""
        yield from super().added()
        yield self._event(f"{_CALL}.in_progress")

    def write(self, code: str) -> Iterator[Event]:
        """Append to the code."""
        if code:
            self.value["code"] += code
            yield self._event(f"{_CALL}_code.delta", delta=code)

    def written(self, code: str | None) -> Iterator[Event]:
        """Set the whole code; None if the model's arguments hold no code."""
        if code is not None:
            self.value["code"] = code
        self._is_running = code is not None
        yield self._event(f"{_CALL}_code.done", code=self.value["code"])

    def running(self) -> Iterator[Event]:
        """Note that the code is run."""
        if self._is_running:
            self.value["status"] = "interpreting"
            yield self._event(f"{_CALL}.interpreting")

    def live(self, outputs: Iterable[JsonObject]) -> Iterator[Event]:
        """Tell of outputs while the code runs; OpenAI has no event for them."""
        for output in outputs:
            yield self._event("agent_tools.output", output=output)

    def ran(self, status: str, outputs: Iterable[Logs | Image]) -> Iterator[Event]:
        """Set the outputs of code that has ended, or was not run."""
        if self._shows_outputs:
            self.value["outputs"] = [output.json for output in outputs]
        if self._is_running and status == "completed":
            yield self._event(f"{_CALL}.completed")
        yield from self.done(status)


def _said(text: str, annotations: Iterable[Citation], logprobs: Sequence[Json] = ()) -> JsonObject:
    shown = [each.json for each in annotations]
    return {"type": "output_text", "text": text, "annotations": shown, "logprobs": list(logprobs)}


def _refused(text: str) -> JsonObject:
    return {"type": "refusal", "refusal": text}


def _summary(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def _thought(text: str) -> JsonObject:
    return {"type": "reasoning_text", "text": text}
