"""Surrogates: the two UTF-16 halves of a character beyond U+FFFF, which some servers send in separate deltas.

Halves that belong together become one character, and U+FFFD takes the place of every other: no encoding can carry a
lone half, so the next request, or a database, would refuse the whole conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    held: TextDelta | ReasoningDelta | ArgumentsDelta | None = None
    for delta in deltas:
        if isinstance(delta, (TextDelta, ReasoningDelta, ArgumentsDelta)):
            if held and _is_next(held, delta):
                delta, held = replace(delta, text=held.text + delta.text), None
            yield from _rest(held)
            whole, held = _cut(delta)
            if whole.text:
                yield whole
            continue
        yield from _rest(held)
        held = None
        yield _of_call(delta) if isinstance(delta, (CallStarted, CallComplete)) else delta
    yield from _rest(held)


def _of_call(delta: CallStarted | CallComplete) -> Delta:
    delta = replace(delta, name=joined(delta.name), id=joined(delta.id))
    return replace(delta, arguments=joined(delta.arguments)) if isinstance(delta, CallComplete) else delta


def _is_next(held: Delta, delta: Delta) -> bool:
    return type(held) is type(delta) and getattr(held, "index", 0) == getattr(delta, "index", 0)


def _rest(held: TextDelta | ReasoningDelta | ArgumentsDelta | None) -> Iterator[Delta]:
    if held:
        yield replace(held, text=joined(held.text))


def _cut(
    delta: TextDelta | ReasoningDelta | ArgumentsDelta,
) -> tuple[TextDelta | ReasoningDelta | ArgumentsDelta, TextDelta | ReasoningDelta | ArgumentsDelta | None]:
    """Divide a delta into the part that can go on and the half that has to wait."""
    if "\ud800" <= delta.text[-1:] <= "\udbff":
        half = replace(delta, text=delta.text[-1])
        half = replace(half, logprobs=()) if isinstance(half, TextDelta) else half
        return replace(delta, text=joined(delta.text[:-1])), half
    return replace(delta, text=joined(delta.text)), None
