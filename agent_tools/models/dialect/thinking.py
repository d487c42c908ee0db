"""Reasoning that a server leaves in its answer, between tags, told from the answer while it arrives. Pure.

Theory of operation. A model's reasoning comes at the beginning of its reply, between a pair of tags of its training.
A server with a parser for it sends it in a field of its own; any other one sends it as text. The splitter is

    start    the first characters may still become an opening tag: nothing is let through yet
    inside   an opening tag has come: text is reasoning, but for a tail that may be the beginning of the closing tag
    between  the closing tag has come: white space is left out, as next to any tag
    over     everything else is the answer

Every character is looked at a bounded number of times, however the reply is cut. Tags in the middle of an answer are
text: a model that writes about tags must not lose what it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from agent_tools.models.base import ReasoningDelta, TextDelta
from agent_tools.models.dialect.profile import Thinking

PAIRS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""Opening and closing tags, as models of Qwen, DeepSeek and others, Mistral, and ByteDance write them."""

MAX_BLANK_CHARS = 200  # characters of white space that are held back while a tag may still come
_State = Literal["start", "inside", "between", "over"]
Said = TextDelta | ReasoningDelta


class ThinkingSplitter:
    """Takes the pieces of a reply's text, and returns them as reasoning and answer.

    With `opened`, a reply begins inside the first pair of tags, whose opening stands in the prompt; one that has the
    opening all the same is read alike. With `text`, all is answer.
    """

    def __init__(self, mode: Thinking = "tagged") -> None:
        self._is_opened = mode == "opened"
        self._state: _State = "over" if mode == "text" else "start"
        self._closing = PAIRS[0][1]
        self._held = ""
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        """Tell that nothing of the answer has come since a tag opened."""
        return self._state in ("inside", "between")

    def feed(self, text: str) -> Iterator[Said]:
        """Take a piece, and yield what can be told of it."""
        if self._state == "over":
            yield from _answer(text)
            return
        self._held += text
        if self._state == "start":
            self._start()
        if self._state == "inside":
            yield from self._think()
        if self._state == "between":
            self._held = self._held.lstrip()
            self._state = "over" if self._held else "between"
        if self._state == "over":
            yield from _answer(self._rest())

    def finish(self) -> Iterator[Said]:
        """Yield what is held back at the reply's end."""
        if self._state == "inside" and (rest := self._rest()):
            yield ReasoningDelta(rest)
        elif self._state == "start":
            yield from _answer(self._rest())

    def _start(self) -> None:
        begun = self._held.lstrip()
        found = next(((opening, closing) for opening, closing in PAIRS if begun.startswith(opening)), None)
        if len(self._held) - len(begun) > MAX_BLANK_CHARS:
            self._state = "inside" if self._is_opened else "over"
        elif found:
            self._state, self._closing = "inside", found[1]
            self._held = begun[len(found[0]) :].lstrip()
        elif not any(opening.startswith(begun) for opening, _ in PAIRS):
            self._state = "inside" if self._is_opened else "over"

    def _think(self) -> Iterator[Said]:
        before, closing, after = self._held.partition(self._closing)
        if closing:
            self._state, self._held, before = "between", after, before.rstrip()
        else:
            end = _held_from(before, self._closing)
            before, self._held = before[:end], before[end:]
        if not self._has_thought:
            before = before.lstrip()
        if before:
            self._has_thought = True
            yield ReasoningDelta(before)

    def _rest(self) -> str:
        rest, self._held = self._held, ""
        return rest


def _answer(text: str) -> Iterator[Said]:
    if text:
        yield TextDelta(text)


def _held_from(text: str, tag: str) -> int:
    """Return the place from which a text's end may be the beginning of a tag, with the white space before it."""
    longest = min(len(text), len(tag) - 1)
    end = len(text) - next((length for length in range(longest, 0, -1) if tag.startswith(text[-length:])), 0)
    start = max(0, end - MAX_BLANK_CHARS)
    seen = text[start:end].rstrip()
    return start + len(seen) if seen or not start else end
