"""The frames of a kernel's socket: bytes as they are, at once or in pieces.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

import struct

from agent_tools.guest.wire.framing import FrameError, pack_parts
from agent_tools.guest.wire.messages import IOPUB, MAX_PARTS, MIN_PARTS, SHELL, STDIN, MessageReader
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of

LIMIT = 64 * 1024


def receive(parts: Parts) -> None:
    """Read what comes: every message is within the limits and what was sent, and none that is there is held back."""
    reader, data, taken = MessageReader(LIMIT), b"".join(parts), 0
    for part in parts:
        for channel, found in reader.feed(part):
            sent = pack_parts(channel, found)
            assert SHELL <= channel <= STDIN
            assert MIN_PARTS <= len(found) <= MAX_PARTS
            assert len(sent) <= 8 + LIMIT
            assert data.startswith(sent, taken)
            taken += len(sent)
    assert not _is_whole(data[taken : taken + 8 + LIMIT])


def _is_whole(data: bytes) -> bool:
    """Whether a message that is not refused begins here, and ends here, too."""
    return len(data) >= 8 and len(data) >= 8 + struct.unpack_from(">I", data, 4)[0]


def _head(*sizes: int) -> bytes:
    count = len(sizes)
    return struct.pack(f">{3 + count}I", IOPUB, min(4 + 4 * count + sum(sizes), 2**32 - 1), count, *sizes)


TARGET = Target(
    receive,
    pieces_of,
    allowed=(FrameError,),
    words=(
        _head(0, 0, 0, 0),
        _head(2, 2, 2, 2) + b"{}{}{}{}",
        _head(0, 0, 0, LIMIT - 20),
        _head(0, 0, 0, LIMIT - 19),
        _head(*[2**32 - 1] * 5),
        b"\0\0\0\1\0\0\1\4\0\0\0\x40",
        b"\0\0\0\3\0\0\0\4",
        b"\xff" * 4,
        unfold.repeat(28, 12),
        unfold.repeat(1, 12),
    ),
)
