"""The frames of a kernel's socket: bytes as they are, at once or in pieces.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

import struct

from agent_tools.guest.wire.messages import IOPUB, MAX_PARTS, MIN_PARTS, SHELL, STDIN, MessageError, MessageReader
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of

LIMIT = 64 * 1024


def receive(parts: Parts) -> None:
    """Read what comes: every message is within the limits and what was sent, and none that is there is held back."""
    reader, data, taken = MessageReader(LIMIT), b"".join(parts), 0
    for part in parts:
        for channel, found in reader.feed(part):
            sent = _packed(channel, found)
            assert SHELL <= channel <= STDIN
            assert MIN_PARTS <= len(found) <= MAX_PARTS
            assert sum(map(len, found)) <= LIMIT
            assert data.startswith(sent, taken)
            taken += len(sent)
    assert not _is_whole(data[taken : taken + LIMIT + 2 + 4 * MAX_PARTS])


def _packed(channel: int, parts: list[bytes]) -> bytes:
    return struct.pack(f">BB{len(parts)}I", channel, len(parts), *map(len, parts)) + b"".join(parts)


def _is_whole(data: bytes) -> bool:
    """Whether a message that is not refused begins here, and ends here, too."""
    head = 2 + 4 * data[1] if len(data) > 1 else 2
    return 2 < head <= len(data) and len(data) >= head + sum(struct.unpack_from(f">{data[1]}I", data, 2))


def _head(*sizes: int) -> bytes:
    return struct.pack(f">BB{len(sizes)}I", IOPUB, len(sizes), *sizes)


TARGET = Target(
    receive,
    pieces_of,
    allowed=(MessageError,),
    words=(
        _head(0, 0, 0, 0),
        _head(2, 2, 2, 2) + b"{}{}{}{}",
        _head(0, 0, 0, LIMIT),
        _head(0, 0, 0, LIMIT + 1),
        _head(*[2**32 - 1] * 5),
        b"\1\x40",
        b"\3\4",
        b"\xff" * 4,
        unfold.repeat(18, 12),
        unfold.repeat(1, 12),
    ),
)
