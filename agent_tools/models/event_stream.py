"""The events of a streamed answer, from its bytes.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html. Only data counts here: names of events say
what their data says again, and nobody reconnects. Beyond the standard, the last event may lack its empty line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_LINE_END = re.compile(rb"\r\n?|\n")


class EventStream:
    """Reads events as their bytes come. It takes time in proportion to them, however they are cut."""

    def __init__(self) -> None:
        self._line = bytearray()  # not over yet
        self._searched = 0  # bytes of it that hold no end of a line
        self._data: list[bytes] = []  # of an event that is not over yet

    def feed(self, arrived: bytes) -> list[bytes]:
        """Return the data of the events that are over with these bytes; events without data are left out."""
        self._line += arrived
        events: list[bytes] = []
        begin = 0
        while found := _LINE_END.search(self._line, max(begin, self._searched)):
            if found.end() == len(self._line) and found.group() == b"\r":
                break  # it may be half an end
            self._read(bytes(self._line[begin : found.start()]), events)
            begin = found.end()
        del self._line[:begin]
        self._searched = max(0, len(self._line) - 1)
        return events

    def finish(self) -> list[bytes]:
        """Return the data of the event that the end of the stream cut off, if there is one."""
        return [*self.feed(b"\n"), *self.feed(b"\n")]

    def _read(self, line: bytes, events: list[bytes]) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line:
            events += filter(None, [b"\n".join(self._data)])
            self._data.clear()


def events(arriving: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    stream = EventStream()
    for data in arriving:
        yield from stream.feed(data)
    yield from stream.finish()
