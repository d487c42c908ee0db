"""The frames that carry a sandbox's connections, at the host's end: bytes at once or in pieces.

The first byte of the input is the size of a piece, 0 for all at once (see pieces.py); the rest is what is sent.
"""

from __future__ import annotations

import asyncio

from agent_tools.guest.wire.framing import HEADER, WINDOW, FrameError
from agent_tools.guest.wire.mux import CREDIT, MAX_FRAME
from agent_tools.runtime.egress.link import Link, ProxyChannel
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of


def carry(parts: Parts) -> None:
    """Take it all in; every second channel is read, and none holds more than it was granted."""
    asyncio.run(_carry(parts))


async def _carry(parts: Parts) -> None:
    opened: list[ProxyChannel] = []
    link = Link(opened.append)
    for part in parts:
        link.feed(part)
        for channel in opened[::2]:
            while channel._pending:
                assert len(await channel.read()) <= MAX_FRAME
        assert all(len(channel._pending) <= WINDOW and 0 <= channel._window.may_send <= WINDOW for channel in opened)
    numbers = [channel._number for channel in opened]
    assert numbers == sorted(set(numbers))
    assert all(0 < number < CREDIT for number in numbers)


def _frame(channel: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(channel, len(payload)) + payload


TARGET = Target(
    carry,
    pieces_of,
    allowed=(FrameError,),
    words=(
        *(_frame(1, b"GET"), _frame(2, b"x" * 100), _frame(1), _frame(2), _frame(3, b"y")),
        *(
            _frame(CREDIT | 1, b"\0\0\1\0"),
            _frame(CREDIT | 1, b"\xff" * 4),
            _frame(CREDIT | 2, b"x"),
            _frame(0, b"ready"),
        ),
        *(HEADER.pack(1, MAX_FRAME), HEADER.pack(1, MAX_FRAME + 1), b"\xff" * 8, _frame(CREDIT - 1, b"z")),
        *(unfold.repeat(9, 10), unfold.repeat(1, 14)),
    ),
)
