"""Joins surrogates: the two UTF-16 halves of a character beyond U+FFFF, which some servers send in separate deltas.

Halves that belong together become one character, and U+FFFD takes the place of every other: no encoding can carry a
lone half, so the next request, or a database, would refuse the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from agent_tools.models.base import ArgumentsDelta, CallComplete, CallStarted, Delta, ReasoningDelta, TextDelta


def joined(text: str) -> str:
    """Return the text with neighbouring halves joined, and U+FFFD for every lone one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def without_halves(deltas: Iterator[Delta]) -> Iterator[Delta]:
    """Yield the deltas without lone halves; a first half at the end of one waits for the next delta of its kind."""
    half: TextDelta | ReasoningDelta | ArgumentsDelta | None = None
    for delta in chain(deltas, (None,)):
        if half and type(half) is type(delta) and getattr(half, "index", 0) == getattr(delta, "index", 0):
            delta = replace(delta, text=half.text + delta.text)
        elif half:
            yield replace(half, text="\ufffd")
        half = None
        if isinstance(delta, (TextDelta, ReasoningDelta, ArgumentsDelta)):
            if "\ud800" <= delta.text[-1:] <= "\udbff":
                half = replace(delta, text=delta.text[-1])
                half = replace(half, logprobs=()) if isinstance(half, TextDelta) else half
                delta = replace(delta, text=delta.text[:-1])
            if delta.text:
                yield replace(delta, text=joined(delta.text))
        elif delta:
            if isinstance(delta, (CallStarted, CallComplete)):
                delta = replace(delta, name=joined(delta.name), id=joined(delta.id))
            yield replace(delta, arguments=joined(delta.arguments)) if isinstance(delta, CallComplete) else delta
