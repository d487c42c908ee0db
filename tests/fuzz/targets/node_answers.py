"""What a node says to a caller before a sandbox's stream: messages with a length, the last one an answer in JSON.

The first byte chooses: `M` messages as they come; anything else is one answer, whose length is right.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from agent_tools.engines.ray.greeting import MESSAGE, read_message
from agent_tools.engines.ray.link import MAX_ANSWER
from agent_tools.engines.ray.request import MAX_TEXT, raise_error
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.guest.wire.framing import HEADER, pack
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target


class Said(socket.socket):
    """A connection on which these bytes come, in small pieces, and then the end."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data, self._at = data, 0

    def recv(self, most: int, flags: int = 0) -> bytes:
        """Return the next bytes."""
        piece = self._data[self._at : self._at + min(most, 4096)]
        self._at += len(piece)
        return piece


def unfold_messages(data: bytes) -> Parts:
    """Return what the node says."""
    kind, rest = data[:1], unfold.text(data[1:])[:MAX_ANSWER]
    return [rest if kind == b"M" else pack(MESSAGE, rest)]


def hear(parts: Parts) -> None:
    """Read up to the answer; an error is one of ours, with a bounded text that harms no terminal."""
    with Said(b"".join(parts)) as said:
        answer = None
        while answer is None:
            answer = read_message(said, MAX_ANSWER, time.monotonic() + 60)
    text = str(_error(answer))
    assert "\x1b" not in text
    assert len(text) <= 12 * MAX_TEXT


def _error(answer: dict[str, Any]) -> Exception | None:
    try:
        raise_error(answer, "a")
    except (EngineError, InvalidParams) as exc:
        return exc
    return None


TARGET = Target(
    hear,
    unfold_messages,
    allowed=(OSError,),
    words=(
        b"M",
        pack(MESSAGE, b""),
        HEADER.pack(MESSAGE, MAX_ANSWER + 1),
        b'{"id": "a"}',
        b'{"error": "HostFull", "message": "',
        b'"log": "',
        b"\x1b[2J",
        b"\\ud800",
        unfold.repeat(1, 12),
    ),
)
