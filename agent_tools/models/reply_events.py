"""The events of a streamed answer, from its bytes.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html. Data counts here, and the name `error`:
other names repeat what their data says, and no client reconnects. Beyond the standard, the last event may lack its
empty line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from agent_tools.models.server_errors import error_of

_LINE_END = re.compile(rb"\r\n?|\n")


class EventReader:
    """Reads events as their bytes come. It takes time in proportion to them, however they are cut."""

    def __init__(self) -> None:
        self._line = bytearray()  # not over yet
        self._searched = 0  # bytes of it that hold no end of a line
        self._data: list[bytes] = []  # of an event that is not over yet
        self._is_error = False  # by its name
        self._is_first = True

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
        if self._is_first:
            self._is_first, line = False, line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        name, _, value = line.partition(b":")
        while name == b"data" and value.lstrip().startswith(b"data:"):  # proxies write it twice
            value = value.lstrip()[len(b"data:") :]
        value = value.removeprefix(b" ")
        if line.startswith(b"{"):  # some servers write errors so
            name, value = b"data", line
        is_comment = name == b"data" and value.startswith(b":")
        if name in (b"data", b"error") and not is_comment:  # llama.cpp has errors under a name of their own
            is_next = value.startswith((b"{", b"[DONE")) and len(self._data) == 1
            if is_next and isinstance(json_or_text(self._data[0]), dict):
                self._end(events)  # without an empty line between them
            self._data.append(value)
            self._is_error = self._is_error or name == b"error"
        elif name == b"event":
            self._is_error = value.strip().lower().endswith((b"error", b"exception"))
        elif not line:
            self._end(events)

    def _end(self, events: list[bytes]) -> None:
        data = b"\n".join(self._data)
        events += filter(None, [_error(data) if self._is_error and data else data])
        self._data.clear()
        self._is_error = False


def json_or_text(data: bytes) -> object:
    """Return JSON read; anything else as text."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return data.decode(errors="replace").strip()


def _error(data: bytes) -> bytes:
    """Return the data of an event that is an error by its name as an error: it may be anything."""
    said = json_or_text(data)
    return json.dumps(said if error_of(said) else {"error": said}).encode()


def events(arriving: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each event of a stream."""
    stream = EventReader()
    for data in arriving:
        yield from stream.feed(data)
    yield from stream.finish()
