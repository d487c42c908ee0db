"""Keeps one call's outputs within bounds: the first and the last of a long text, the first of many pictures.

Streaming: what fits passes at once; of what does not, the end is held back and comes out when the call is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator

from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import (
    Cleared,
    Display,
    HostCall,
    Notice,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    pictures_of,
)

# Of one call.
MAX_DISPLAYS = 200  # displays and results
MAX_UPDATES = 2_000  # of displays that are there already
MAX_CALL_BYTES = 64 * MIB  # of all displays and results


def limited(outputs: Iterable[Output], limits: Limits) -> Generator[Output, None, None]:
    """Pass outputs on within the limits, with exact notes of what was left out.

    Clearing what is cleared already is left out, so that clears, too, are bounded: two after any other output.
    """
    budget = _Budget(limits)
    last: Output | None = None
    for output in outputs:
        for each in budget.passed(output):
            if not (isinstance(each, Cleared) and isinstance(last, Cleared) and (each.wait or not last.wait)):
                yield each
                last = each
    yield from budget.flush()
    yield from budget.notes()


class _Budget:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.head_left = limits.max_text_chars - limits.max_text_chars // 2
        self.tail_size = limits.max_text_chars // 2
        self.tail: deque[Stream] = deque()
        self.tail_chars = 0
        self.chars_dropped = 0
        self.bytes_left = MAX_CALL_BYTES
        self.displays = self.updates = self.images = 0
        self.displays_dropped = self.images_dropped = 0
        self.notes_passed = self.notes_dropped = 0

    def passed(self, output: Output) -> Iterable[Output]:
        """Return what may pass now, with notes and the held-back text that go before it."""
        match output:
            case Stream():
                return self.stream(output)
            case Result() | Display():
                return self.display(output)
            case Omitted():
                return self.note(output)
            case HostCall():  # bounded by the limits on host calls
                return (output,)
        return (*self.flush(), output)  # an ending: one, short, and after all text before it

    def stream(self, output: Stream) -> Iterator[Output]:
        text = output.text
        if self.head_left > 0 and text:
            yield Stream(output.name, text[: self.head_left])
            text, self.head_left = text[self.head_left :], self.head_left - min(len(text), self.head_left)
        if text:
            self._hold(Stream(output.name, text))

    def _hold(self, output: Stream) -> None:
        """Add to the tail and drop from its front what is over its size."""
        self.tail.append(output)
        self.tail_chars += len(output.text)
        while (excess := self.tail_chars - self.tail_size) > 0:
            first = self.tail.popleft()
            dropped = min(excess, len(first.text))
            if dropped < len(first.text):
                self.tail.appendleft(Stream(first.name, first.text[dropped:]))
            self.chars_dropped += dropped
            self.tail_chars -= dropped

    def flush(self) -> Iterator[Output]:
        """The held-back end of the text, after a note of what is missing before it.

        Once the tail is spent there is nothing to flush: what is missing after it is noted once, at the end.
        """
        if not self.tail:
            return
        yield from self._characters()
        yield from self.tail
        self.tail_size -= self.tail_chars  # what came out is spent
        self.tail.clear()
        self.tail_chars = 0

    def _characters(self) -> Iterator[Output]:
        if self.chars_dropped:
            yield Omitted(f"{self.chars_dropped:,} characters")
        self.chars_dropped = 0

    def note(self, output: Omitted) -> Iterator[Output]:
        """Notes of what could not be read: the guest can cause any number, so they are counted like displays."""
        if self.notes_passed >= MAX_DISPLAYS:
            self.notes_dropped += 1
            return
        self.notes_passed += 1
        yield from self.flush()
        yield output

    def display(self, output: Result | Display) -> Iterator[Output]:
        size = sum(len(value if isinstance(value, (str, bytes)) else repr(value)) for value in output.data.values())
        pictures = len(pictures_of(output))
        if self.images + pictures > self.limits.max_images:
            self.images_dropped += pictures
        elif self._has_no_room_for(output) or size > self.bytes_left:
            self.displays_dropped += 1
        else:
            self.images += pictures
            if _is_update(output):
                self.updates += 1
            else:
                self.displays += 1
            self.bytes_left -= size
            yield from self.flush()
            yield output

    def _has_no_room_for(self, output: Result | Display) -> bool:
        if _is_update(output):  # an update replaces what is there, so there may be more of them
            return self.updates >= MAX_UPDATES
        return self.displays >= MAX_DISPLAYS

    def notes(self) -> Iterator[Output]:
        yield from self._characters()
        if self.notes_dropped:
            yield Omitted(f"{self.notes_dropped:,} notes like these")
        if self.images_dropped:
            yield Omitted(f"{self.images_dropped:,} pictures after the first {self.limits.max_images}")
        if self.displays_dropped:
            yield Omitted(f"{self.displays_dropped:,} displayed values")


def _is_update(output: Result | Display) -> bool:
    return isinstance(output, Display) and output.is_update


# Outputs settled while they come: what was cleared or replaced is as if it had never been.


OURS = (Restarted, Omitted, Notice, HostCall)  # what the code cannot clear


class Settling:
    """Outputs as they come: stream texts joined, displays updated in place, and nothing kept of what was cleared."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._clears_next = False

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that have come so far, settled."""
        return tuple(self._outputs)

    def add(self, output: Output) -> None:
        """Settle one more."""
        if isinstance(output, Cleared):
            self._clears_next = output.wait
            if not output.wait:
                self._clear()
            return
        if self._clears_next and not isinstance(output, OURS):
            self._clears_next = False
            self._clear()
        self._settle(output)

    def _clear(self) -> None:
        self._outputs = [output for output in self._outputs if isinstance(output, OURS)]

    def _settle(self, output: Output) -> None:
        last = self._outputs[-1] if self._outputs else None
        if isinstance(output, Stream) and isinstance(last, Stream) and last.name == output.name:
            self._outputs[-1] = Stream(last.name, last.text + output.text)
            return
        if isinstance(output, Display) and output.is_update and output.display_id is not None:
            for index, earlier in enumerate(self._outputs):
                if isinstance(earlier, Display) and earlier.display_id == output.display_id:
                    self._outputs[index] = Display(output.data, output.display_id)
                    return
        self._outputs.append(output)


def settle(outputs: Iterable[Output]) -> tuple[Output, ...]:
    """Settle outputs that are all there."""
    settling = Settling()
    for output in outputs:
        settling.add(output)
    return settling.outputs
