"""Datagrams whose sender the operating system tells: words of the code's processes to PID 1, and to supervisors.

Nothing else comes with them: what these processes hold never belongs to PID 1, not even for as long as it takes to
close it (sockets.py).
"""

import socket
import struct
from collections.abc import Sequence

from ..wire.sockets import pair as _pair
from .words import MAX_BYTES

_CREDENTIALS = struct.Struct("3i")  # ucred, unix(7): pid, uid, gid
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
Told = tuple[bytes, int]
"""A word, and the pid of who sent it (0: not told)."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the end of PID 1, which never waits, and the other one."""
    ours, theirs = _pair(socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    _tell_senders(ours, True)
    return ours, theirs


def send(line: socket.socket, word: bytes, descriptors: Sequence[int]) -> None:
    """Send from the end of PID 1. The sender of what comes to it at the same moment is not told.

    Linux gives a socket that is told senders an address when it sends: a name that all code in the sandbox could
    connect to.

    Raises:
        OSError: it cannot be sent now.
    """
    _tell_senders(line, False)
    try:
        socket.send_fds(line, [word], descriptors, socket.MSG_DONTWAIT)
    finally:
        _tell_senders(line, True)


def _tell_senders(line: socket.socket, are_told: bool) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, int(are_told))


def receive(line: socket.socket) -> "Told | None":
    """Return what has come, None for the end.

    Raises:
        BlockingIOError: nothing has.
    """
    try:
        word, ancillary, flags, _ = _received(line)
    except ConnectionError:  # it was closed before all was read there: that is told first, and once
        word, ancillary, flags, _ = _received(line)
    pid = 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(data)[0]
    return (word, pid) if word or ancillary or flags & socket.MSG_CTRUNC else None


def _received(line: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
    return line.recvmsg(MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
