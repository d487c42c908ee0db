"""Pairs of sockets with one end for untrusted code. Standard library only.

Theory of operation
    A unix socket carries descriptors, and its receiver owns the open file: the last reference is dropped by the
    receiver, in `recv`, which takes no descriptors, too, and in `close`, for what was never read. There are files whose
    last `close` waits for as long as code likes: a TCP socket that lingers, a pipe at whose other end a process waits
    in `sendfile`. So our end refuses descriptors (SO_PASSRIGHTS, Linux 6.16), and the sender gets EPERM. Older kernels
    leave that to the seccomp profile, which refuses what would make such files.
"""

import contextlib
import select
import socket
from collections.abc import Iterable, Mapping

SO_PASSRIGHTS = 83  # asm-generic/socket.h


def pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return the trusted end, which accepts no descriptors, and the end for code."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind) if hasattr(socket, "AF_UNIX") else socket.socketpair()
    with contextlib.suppress(OSError):  # an older kernel
        ours.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    return ours, theirs


def await_input(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until there is something to read, or the end; return whether there is. None waits for ever."""
    return bool(await_any([descriptor], [], seconds))


def await_room(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until writing is possible or the other end is closed; return whether it is. None waits for ever."""
    return bool(await_any([], [descriptor], seconds))


def await_any(readers: Iterable[int], writers: Iterable[int], seconds: "float | None" = None) -> set[int]:
    """Wait for input of any of `readers` or room in any of `writers`; return those that are ready."""
    events = dict.fromkeys(readers, select.POLLIN)
    for descriptor in writers:
        events[descriptor] = events.get(descriptor, 0) | select.POLLOUT
    return _await(events, seconds)


def await_hang_up(descriptor: int, seconds: "float | None" = None) -> bool:
    """Wait until the other end is closed, even with unread bytes; return whether it is. None waits for ever."""
    return bool(_await({descriptor: 0}, seconds))  # a hang-up is told unasked


def _await(events: Mapping[int, int], seconds: "float | None") -> set[int]:
    poller = select.poll()
    for descriptor, event in events.items():
        poller.register(descriptor, event)
    return {descriptor for descriptor, _ in poller.poll(None if seconds is None else max(0.0, seconds) * 1000)}
