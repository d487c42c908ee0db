"""Text of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tools.gateway.responses.items import Event, Item
from agent_tools.gateway.responses.logprobs import shown_logprobs
from agent_tools.growing_text import GrowingText
from agent_tools.models.base import Json, JsonObject


@dataclass(frozen=True)
class _Part:
    """The words by which events name one kind of text: its part, the part's field and index, and its own events."""

    kind: str
    events: str
    text: str = "text"  # the field with the text, in the part and in the event that ends it
    field: str = "content"
    part_events: str = "response.content_part"


_ANSWER = _Part("output_text", "response.output_text")
_REFUSAL = _Part("refusal", "response.refusal", text="refusal")
_THOUGHT = _Part("reasoning_text", "response.reasoning_text")
_SUMMARY = _Part(
    "summary_text", "response.reasoning_summary_text", field="summary", part_events="response.reasoning_summary_part"
)


class SpokenItem(Item):
    """An item with one text, which comes in pieces."""

    def __init__(self, part: _Part, prefix: str, kind: str, **fields: Any) -> None:
        super().__init__(prefix, kind, **fields, status="in_progress")
        self.text = GrowingText()
        self._part = part
        self._place = {f"{part.field}_index": 0}

    def added(self) -> Iterator[Event]:
        """Yield the events of a new item with an empty part."""
        yield from super().added()
        yield self._event(f"{self._part.part_events}.added", **self._place, part=self._shown())

    def write(self, text: str, **more: Any) -> Iterator[Event]:
        """Append to the text."""
        self.text.append(text)
        yield self._event(f"{self._part.events}.delta", **self._place, delta=text, **more)

    def _shown(self, **more: Any) -> JsonObject:
        return {"type": self._part.kind, self._part.text: str(self.text), **more}

    def _closing(self) -> Iterator[Event]:
        yield from self._end(self._shown())

    def _end(self, shown: JsonObject, **more: Any) -> Iterator[Event]:
        self.value[self._part.field] = [shown]
        yield self._event(f"{self._part.events}.done", **self._place, **{self._part.text: str(self.text)}, **more)
        yield self._event(f"{self._part.part_events}.done", **self._place, part=shown)


class ReasoningItem(SpokenItem):
    """A model's reasoning: its content, or, for clients that ask for one, its summary, which is the same text.

    With `seal`, it also has the text as `encrypted_content`, which the client sends back.
    """

    def __init__(self, as_summary: bool = False, seal: Callable[[str], str] | None = None) -> None:
        empty: JsonObject = {"summary": []} if as_summary else {"summary": [], "content": []}
        super().__init__(_SUMMARY if as_summary else _THOUGHT, "rs", "reasoning", **empty)
        self._seal = seal

    def _closing(self) -> Iterator[Event]:
        if self._seal:
            self.value["encrypted_content"] = self._seal(str(self.text))
        yield from super()._closing()


class RefusalItem(SpokenItem):
    """A model's message in which it refuses to answer."""

    def __init__(self) -> None:
        super().__init__(_REFUSAL, "msg", "message", role="assistant", content=[])


class MessageItem(SpokenItem):
    """A model's message. `annotations` are set before it is done."""

    def __init__(self) -> None:
        super().__init__(_ANSWER, "msg", "message", role="assistant", content=[])
        self.logprobs: list[Json] = []
        self.annotations: list[JsonObject] = []

    def write(self, text: str, logprobs: Sequence[Json] = (), **more: Any) -> Iterator[Event]:
        """Append to the text; `logprobs` are those of its tokens that are shown."""
        self.logprobs += logprobs
        yield from super().write(text, logprobs=shown_logprobs(logprobs, with_bytes=False), **more)

    def _shown(self, **more: Any) -> JsonObject:
        return super()._shown(**{"annotations": [], "logprobs": [], **more})

    def _closing(self) -> Iterator[Event]:
        for index, annotation in enumerate(self.annotations):
            kind = "response.output_text.annotation.added"
            yield self._event(kind, content_index=0, annotation_index=index, annotation=annotation)
        part = self._shown(annotations=self.annotations, logprobs=shown_logprobs(self.logprobs, with_bytes=True))
        yield from self._end(part, logprobs=shown_logprobs(self.logprobs, with_bytes=False))
