"""The messages between a kernel, its copies and PID 1: datagrams whose sender the operating system reports.

PID 1 makes all sockets, and accepts no descriptor: it must not own what code holds, not even until it closes it
(wire/sockets.py).

    kernel -> PID 1   skipped <why>   no copy was taken after the latest run
    kernel -> PID 1   running         a run begins that may change much memory: watch it
    PID 1  -> kernel  <number>        with one socket: the line on which the next copy waits
    copy   -> PID 1   copy <run> <n>  a copy was left after this run, and waits on the line of this number
    PID 1  -> copy    wake <why>      with the next kernel's sockets for messages, host calls and words to PID 1, and
                                      its pipes of stdout and stderr, each to read and to write; why no copy was
                                      taken since, if none was
    fork   -> PID 1   awake           the sender is the kernel now
    PID 1  -> copy    branch          with two sockets: a fork of the copy becomes the supervisor of a branch, with
                                      the first as its lifeline; on the second it says
    fork   -> PID 1   awake           the sender is the supervisor now
"""

import socket
import struct
from collections.abc import Sequence

from ..wire.sockets import pair as _pair

MAX_BYTES = 64
DESCRIPTORS, BRANCH_DESCRIPTORS = 7, 2  # of a kernel, and of the supervisor of a branch
AWAKE, BRANCH = b"awake", b"branch"
THREADS, CHILDREN, MEMORY, TIME = "threads", "children", "memory", "time"
_CREDENTIALS = struct.Struct("3i")  # ucred, unix(7): pid, uid, gid
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the end of PID 1, which never waits, and the other end."""
    ours, theirs = _pair(socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    _report_senders(ours, True)
    return ours, theirs


def send(line: socket.socket, word: bytes, descriptors: Sequence[int]) -> None:
    """Send from the end of PID 1. The sender of a datagram that arrives at the same moment is not reported.

    Linux gives a socket with SO_PASSCRED an address when it sends, to which all code in the sandbox could connect.

    Raises:
        OSError: it cannot be sent now.
    """
    _report_senders(line, False)
    try:
        socket.send_fds(line, [word], descriptors, socket.MSG_DONTWAIT)
    finally:
        _report_senders(line, True)


def _report_senders(line: socket.socket, wanted: bool) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, int(wanted))


def receive(line: socket.socket) -> "tuple[bytes, int] | None":
    """Return a word and the pid of its sender (0: not reported), None for the end.

    Raises:
        BlockingIOError: nothing has come.
    """
    try:
        word, ancillary, flags, _ = _received(line)
    except ConnectionError:  # the other end closed with words unread: Linux reports it first, and once
        try:
            word, ancillary, flags, _ = _received(line)
        except ConnectionError:  # gVisor reports it after the last word, at every read
            return None
    pid = 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(data)[0]
    return (word, pid) if word or ancillary or flags & socket.MSG_CTRUNC else None


def _received(line: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
    return line.recvmsg(MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
