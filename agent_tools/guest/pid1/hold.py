"""PID 1 of a pod: it boots, and holds the sandbox until a program beside it hands over its stdin and stdout.

Theory of operation
    What PID 1 of a pod prints is kept in the log of its node, so the host cannot be spoken to over PID 1's own
    stdout. It is spoken to over that of an executed program (hand_over.py), which is in no log. PID 1 gets these
    descriptors and serves as if they were its own; it is PID 1 all the same, so it reaches every process and none
    reaches it. It has booted before, so a sandbox that waits in a pool has its imports behind it. Only the first
    that connects is listened to, and no code has run by then. What an engine cannot limit in a pod, PID 1 limits at
    its start.
"""

import contextlib
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterator

from ..forks import silence
from .hand_over import ADDRESS
from .lifeline import Received, StdioLifeline

MODE = "hold"
CREDENTIALS = struct.Struct("3i")  # unix(7), SO_PEERCRED: pid, uid, gid
STREAMS = 2  # stdin and stdout


class Hold:
    """The arguments after `hold` on the command line, in order.

    Attributes:
        open_files: descriptors of one process.
        file_size: bytes of the largest file.
        timeout: seconds until the streams must be passed; 0 for no limit.
    """

    def __init__(self, open_files: str, file_size: str, timeout: str) -> None:
        limit(resource.RLIMIT_NOFILE, int(open_files))
        limit(resource.RLIMIT_FSIZE, int(file_size))
        limit(resource.RLIMIT_CORE, 0)
        self._timeout = float(timeout) or None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(ADDRESS)
        self._listener.listen(1)

    def await_host(self) -> "HeldLifeline":
        """Wait for the streams.

        Raises:
            SystemExit: they were not passed in time; the sandbox ends.
        """
        self._listener.settimeout(self._timeout)
        try:
            with self._listener:
                bearer, _ = self._listener.accept()
            descriptors = handed_over(bearer, self._timeout)
        except OSError:  # a TimeoutError, too
            sys.exit("nobody has handed over a stream")
        silence(0, 1, 2)  # PID 1's own streams lead into the log of the node
        return HeldLifeline(bearer, *descriptors)


class HeldLifeline(StdioLifeline):
    """The streams of the bearer, the program that has handed them over. It has ended with either of them."""

    def __init__(self, bearer: socket.socket, stdin: int, stdout: int) -> None:
        self.bearer = bearer
        self.pid = CREDENTIALS.unpack(bearer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[0]
        super().__init__(stdin, stdout)

    def watched(self) -> tuple[list[int], list[int]]:
        """Return the descriptors to wait for: to read from, and to write to."""
        readers, writers = super().watched()
        return [self.bearer.fileno(), *readers], writers

    def exchange(self, ready: set[int]) -> Iterator[Received]:
        """Yield the orders that have come, and carry what the channels say."""
        yield from super().exchange(ready)
        self.is_open = self.is_open and self.bearer.fileno() not in ready

    def close(self) -> None:
        """Let go of it, in a fork."""
        super().close()
        self.bearer.close()


def handed_over(bearer: socket.socket, timeout: float | None) -> list[int]:
    """Return the two descriptors that a client brings.

    Raises:
        OSError: these do not come in time, or others do; nothing of them stays open.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(bearer.close)
        bearer.settimeout(timeout)
        _, descriptors, flags, _ = socket.recv_fds(bearer, 1, STREAMS, socket.MSG_CMSG_CLOEXEC)
        for descriptor in descriptors:
            undo.callback(os.close, descriptor)
        if len(descriptors) != STREAMS or flags & socket.MSG_CTRUNC:
            raise OSError("these are not two streams")
        bearer.settimeout(None)
        undo.pop_all()
    return list(descriptors)


def limit(what: int, most: int) -> None:
    """Set a limit for this process and its descendants; a lower limit stays."""
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
