"""Limits one call's outputs: keeps the first and last part of a long text, and the first of many pictures.

Outputs within the limits are passed on at once; beyond them, the last part is buffered and passed on at the end. What
takes the place of another output, as an update or after a clear, has that one's room, `MAX_UPDATES` times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator

from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import (
    Cleared,
    Display,
    Error,
    HostCall,
    Notice,
    Omitted,
    Output,
    Result,
    Stream,
    pictures_of,
)
from agent_tools.runtime.kernel.settling import OURS

# Of one call.
MAX_DISPLAYS = 200  # displays and results
MAX_UPDATES = 2_000  # of displays that are there already, or that were cleared
MAX_CALL_BYTES = 64 * MIB  # of all displays and results


def limited(outputs: Iterable[Output], limits: Limits) -> Generator[Output, None, None]:
    """Pass outputs on within the limits, with exact notes of omissions.

    Repeated clears are left out, so that clears, too, are bounded: two after any other output.
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
        self.images_by_id: dict[str, int] = {}  # of displays that can be updated
        self.clears_next = False
        self.notes_passed = self.notes_dropped = 0

    def passed(self, output: Output) -> Iterable[Output]:
        """Return the outputs that may pass now, after notes and buffered text."""
        if isinstance(output, Cleared) or (self.clears_next and not isinstance(output, OURS)):
            self.clears_next = isinstance(output, Cleared) and output.wait
            if not self.clears_next:
                self.clear()
        match output:
            case Stream():
                return self.stream(output)
            case Result() | Display():
                return self.display(output)
            case Omitted():
                return self.note(output)
            case HostCall():  # bounded by the limits on host calls
                return (output,)
        return (*self.flush(), output)  # an ending or a notice: few, bounded, and after all earlier text

    def stream(self, output: Stream) -> Iterator[Output]:
        text = output.text
        if self.head_left > 0 and text:
            yield Stream(output.name, text[: self.head_left])
            text, self.head_left = text[self.head_left :], self.head_left - min(len(text), self.head_left)
        if text:
            self._hold(Stream(output.name, text))

    def _hold(self, output: Stream) -> None:
        """Append to the tail, and drop the excess at its front."""
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
        """Return the buffered end of the text, after a note of the missing part before it.

        Once the tail was returned there is nothing to flush: text missing after it is noted once, at the end.
        """
        if not self.tail:
            return
        yield from self._characters()
        yield from self.tail
        self.tail_size -= self.tail_chars  # text that was passed on is counted
        self.tail.clear()
        self.tail_chars = 0

    def _characters(self) -> Iterator[Output]:
        if self.chars_dropped:
            yield Omitted(f"{self.chars_dropped:,} characters", is_text=True)
        self.chars_dropped = 0

    def note(self, output: Omitted) -> Iterator[Output]:
        """Return notes on unreadable outputs: the guest can cause any number, so they are counted like displays."""
        if self.notes_passed >= MAX_DISPLAYS:
            self.notes_dropped += 1
            return
        self.notes_passed += 1
        yield from self.flush()
        yield output

    def clear(self) -> None:
        """Give back the room of what has been displayed until now."""
        if self.updates + self.displays <= MAX_UPDATES:
            self.updates += self.displays
            self.displays = self.images = 0
            self.images_by_id.clear()

    def display(self, output: Result | Display) -> Iterator[Output]:
        size = sum(len(value if isinstance(value, (str, bytes)) else repr(value)) for value in output.data.values())
        pictures, id_ = len(pictures_of(output)), output.display_id or "" if isinstance(output, Display) else ""
        more = pictures - (self.images_by_id.get(id_, 0) if _is_update(output) else 0)
        if self.images + more > self.limits.max_images:
            self.images_dropped += pictures
        elif self._has_no_room_for(output) or size > self.bytes_left:
            self.displays_dropped += 1
        else:
            self.images += more
            if id_:
                self.images_by_id[id_] = pictures
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


class BackgroundText:
    """The text of code that runs on between two runs: its first and last part, as of a run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forget it."""
        self._budget = _Budget(self._limits)
        self._passed: list[Output] = []

    def add(self, outputs: Iterable[Output]) -> None:
        """Add outputs. Displays are only named: among those of the next run they would pass for its own."""
        for output in outputs:
            match output:
                case Result() | Display():
                    self._passed += self._budget.passed(Omitted("a display of background code"))
                case Error():
                    self._passed += self._budget.passed(Stream("stderr", f"{output.text}\n"))
                case Stream() | Omitted():
                    self._passed += self._budget.passed(output)

    def take_notices(self) -> Iterator[Notice]:
        """Yield a note with the text, if there is any, and forget it."""
        if not self._passed:
            return
        self._passed += (*self._budget.flush(), *self._budget.notes())
        text = "".join(
            each.text if isinstance(each, Stream) else f"\n{each.text}\n"
            for each in self._passed
            if isinstance(each, (Stream, Omitted))
        )
        self.clear()
        yield Notice(f"Printed by background code since the previous call:\n{text}")
