"""The frames of a sandbox's stdio: bytes in pieces, into two streams and the words."""

from __future__ import annotations

import contextlib
import socket

from agent_tools.guest.wire.framing import WINDOW, FrameError
from agent_tools.guest.wire.mux import MAX_FRAME, MAX_OUT, Mux
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target

PIECE = 7  # bytes, so that frames come in several


def unfold_pieces(data: bytes) -> Parts:
    """The first part in small pieces, the rest whole."""
    whole = unfold.text(data)
    return [*(whole[at : at + PIECE] for at in range(0, min(len(whole), 700), PIECE)), whole[700:]]


def feed(parts: Parts) -> None:
    """Take it all in, while one stream's reader reads and the other's does not."""
    mux = Mux()
    with contextlib.ExitStack() as stack:
        stack.callback(mux.close_all)
        far = []
        for channel in (1, 2):
            ours, theirs = socket.socketpair()
            far.append(stack.enter_context(theirs))
            theirs.setblocking(False)
            mux.open(channel, ours)
        for part in parts:
            for words in mux.feed(part):
                assert len(words) <= MAX_FRAME
            readers, writers = mux.wants()
            mux.exchange({end.fileno() for end in (*readers, *writers)})
            with contextlib.suppress(BlockingIOError):
                far[0].recv(1 << 20)
            assert all(len(stream.pending) <= WINDOW for stream in mux.streams.values())
            assert all(0 <= stream.window.may_send <= WINDOW for stream in mux.streams.values())
            assert len(mux.out) <= MAX_OUT + MAX_FRAME


def _frame(channel: int, size: int) -> bytes:
    return channel.to_bytes(4, "big") + size.to_bytes(4, "big")


TARGET = Target(
    feed,
    unfold_pieces,
    allowed=(FrameError,),
    words=(_frame(0, 5), _frame(1, 0), _frame(1, 16), _frame(2, 65536), _frame(0x80000001, 4), b"ready", b"\xff" * 4),
)
