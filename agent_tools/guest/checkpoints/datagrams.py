"""Datagrams whose sender the operating system tells: words of the code's processes to PID 1, and to supervisors.

Nothing else comes with them: what these processes hold never belongs to PID 1, not even for as long as it takes to
close it (sockets.py).
"""

import socket
import struct

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
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive(line: socket.socket) -> "Told | None":
    """Return what has come, None for the end.

    Raises:
        BlockingIOError: nothing has.
    """
    try:
        word, ancillary, flags, _ = line.recvmsg(MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # it was closed before all was read there
        return None
    pid = 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(data)[0]
    return (word, pid) if word or ancillary or flags & socket.MSG_CTRUNC else None
