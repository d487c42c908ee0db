"""The frames of a kernel's channel: bytes as they are, in one read or several."""

from __future__ import annotations

import socket

from agent_tools.runtime.kernel.zmtp import MAX_FRAMES, ZmtpSocket

from agent_tools.errors import ProtocolViolation
from tests.fuzz import unfold
from tests.fuzz.oracle import Parts, Target
from tests.fuzz.pieces import pieces_of

LIMIT = 64 * 1024
MOST = 128 * 1024  # what a socket takes without a reader


def receive(parts: Parts) -> None:
    """Read what comes; every message is within the limits."""
    connected, peer = socket.socketpair()
    with connected, peer:
        reader = ZmtpSocket(connected, "SUB", LIMIT)
        for part in parts:
            peer.sendall(part)
            for message in reader.receive():
                assert 0 < len(message) <= MAX_FRAMES
                assert sum(map(len, message)) <= LIMIT
        peer.close()
        while not reader.is_closed:
            for message in reader.receive():
                assert sum(map(len, message)) <= LIMIT


TARGET = Target(
    receive,
    lambda data: pieces_of(data, MOST),
    allowed=(ProtocolViolation,),
    words=(b"\0\0", b"\1\0", b"\4\x05READY", b"\2" + bytes(7) + b"\x10", b"\3" + b"\xff" * 8, unfold.repeat(2, 12)),
)
