"""Messages of WebSockets and notebooks as clients and code give them to the terminal wire."""

from __future__ import annotations

from agent_tools.wires.terminal.commands import read_first, read_size
from agent_tools.wires.terminal.python import read_notebook, source_of
from tests.fuzz.oracle import Bound, Parts, Target


def read_messages(parts: Parts) -> None:
    """Read them as each of these; a size of a terminal is one that can be."""
    data = parts[0]
    text = data.decode("utf-8", "replace")
    size = read_size(text)
    assert size is None or all(0 < each < 1_000 for each in size)
    read_first(text)
    for cell in (read_notebook(data) or {}).get("cells", ()):
        source_of(cell)


TARGET = Target(
    read_messages,
    lambda data: [data],
    allowed=(),
    bound=Bound(seconds_per_byte=40e-6, bytes_per_byte=256),
    words=(
        *(b'{"type": "auth", "token": "', b'{"type": "resize", "rows": ', b', "cols": 1e999}', b'"chat_id": '),
        *(b'{"cells": [', b'{"source": [', b"null", b"[" * 99),
    ),
)
