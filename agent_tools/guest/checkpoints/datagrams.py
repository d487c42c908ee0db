"""Datagrams whose sender the operating system tells, with sockets that come along."""

import os
import socket
import struct

from .words import MAX_BYTES

_CREDENTIALS = struct.Struct("3i")  # ucred, unix(7): pid, uid, gid
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)
Told = tuple[bytes, int, list[socket.socket]]
"""A word, the pid of who sent it (0: not told), and the sockets that came with it, which the taker closes."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the end of PID 1, which never waits, and the other one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive(line: socket.socket) -> "Told | None":
    """Return what has come, None for the end.

    Raises:
        BlockingIOError: nothing has.
    """
    word, ancillary, _, _ = line.recvmsg(MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    pid, sockets = _read(ancillary)
    return (word, pid, sockets) if word or ancillary else None


def _read(ancillary: "list[tuple[int, int, bytes]]") -> tuple[int, list[socket.socket]]:
    """Return who sent a datagram, and the sockets that came with it."""
    pid = 0
    sockets: list[socket.socket | None] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            sockets += [_line(number) for (number,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])]
    return pid, [each for each in sockets if each]


def _line(descriptor: int) -> socket.socket | None:
    """Return a descriptor as the socket that it is to be; anything else is closed."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
