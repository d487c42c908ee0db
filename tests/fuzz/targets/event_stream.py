"""A model's server: the bytes of a stream of events, in pieces."""

from __future__ import annotations

import re

from agent_tools.models.reply_events import _error, events, json_or_text
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of


def read(parts: Parts) -> None:
    """Read the events; how the bytes were cut makes no difference."""
    assert list(events(parts)) == _events(b"".join(parts))


def _events(whole: bytes) -> list[bytes]:
    """The events as the standard tells of them, line by line, and what servers make of it."""
    found, data, is_error = [], [], False
    for line in [*re.split(rb"\r\n|\r|\n", whole), b""]:
        name, _, value = line.partition(b":")
        value = re.sub(rb"\A(?:\s*data:)+", b"", value) if name == b"data" else value
        if line.startswith(b"{"):
            name, value = b"data", b" " + line
        value = value.removeprefix(b" ")
        is_next = len(data) == 1 and isinstance(json_or_text(data[0]), dict) and value.startswith((b"{", b"[DONE"))
        is_data = name == b"error" or (name == b"data" and not value.startswith(b":"))
        if not line or (is_data and is_next):
            whole_data = b"\n".join(data)
            found.append(_error(whole_data) if is_error and whole_data else whole_data)
            data, is_error = [], False
        if is_data:
            data.append(value)
            is_error = is_error or name == b"error"
        elif name == b"event":
            is_error = value.strip().lower().endswith((b"error", b"exception"))
    return [each for each in found if each]


TARGET = Target(
    read,
    pieces_of,
    words=(
        *(
            b"data: ",
            b"data: data: ",
            b"data:",
            b"data",
            b"event: a",
            b"event: error",
            b"event: aException",
            b"error: ",
            b": ",
            b"id: 1",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\r\r",
        ),
        *(b"[DONE]", b'{"choices": []}', b'{"a":', unfold.repeat(1, 12), unfold.repeat(7, 12)),
    ),
)
