"""The last words of a kernel: text that was in the pipes of its stdout and stderr when its process ended.

Theory of operation
    PID 1 makes the pipes and keeps the reading ends, which the kernel has, too. After the kernel's end a fork reads
    what is left in them, and PID 1 tells the host before it tells of the end.

    PID 1 itself neither reads these pipes nor closes them last: both wait for a lock of the pipe, which a process
    that has the other end can hold for as long as it likes (sendfile(2), where the seccomp profile is not ours). The
    fork may wait; PID 1 kills it after a while and goes on.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from ..wire.lines import MAX_TEXT
from ..wire.sockets import await_input
from ..wire.words import STREAMS, Printed, StreamName

SECONDS = 1.0  # for the fork, which takes a few milliseconds
SECONDS_IF_KILLED = 0.2  # where PID 1 has ended the kernel: the host waits for that
MAX_BYTES = 64 * 1024  # of each stream; a pipe holds as much
LEFT_OUT = "\n[what the code wrote after this was lost when its process ended]\n"


class LastWords:
    """The reading ends of the pipes of one kernel."""

    def __init__(self) -> None:
        self._readers: list[int] = []
        self._earlier: list[int] = []  # of kernels after whose end there was no room for a fork

    def pipes(self) -> list[int]:
        """Make the pipes of the next kernel; return their ends: to read and write, of stdout and stderr.

        The caller closes the writing ends.
        """
        first = os.pipe2(os.O_CLOEXEC)
        try:
            second = os.pipe2(os.O_CLOEXEC)
        except OSError:
            for end in first:
                os.close(end)
            raise
        self._readers = [first[0], second[0]]
        for reader in self._readers:
            os.set_blocking(reader, False)
        return [*first, *second]

    def read_output(self, generation: int, let_go: Callable[[], None], seconds: float = SECONDS) -> Iterator[Printed]:
        """Yield the last output, and close the pipes. `let_go` closes, in a fork, PID 1's own descriptors."""
        if not self._readers:
            return
        readers, self._readers = self._readers, []
        heard: tuple[bytes, bytes] = b"", b""
        with contextlib.ExitStack() as stack:
            try:
                ours, theirs = map(stack.enter_context, socket.socketpair())
                pid = os.fork()
            except OSError:  # no room for a process
                self._earlier += readers
                return
            if pid == 0:
                _read(theirs, readers, let_go)
            theirs.close()
            closed, self._earlier = [*readers, *self._earlier], []
            heard = _heard(ours, closed, time.monotonic() + seconds)
            os.kill(pid, signal.SIGKILL)
        for name, data in zip(STREAMS, heard):
            yield from _told(generation, name, data)

    def close(self) -> None:
        """Let go of them, in a fork."""
        for reader in [*self._readers, *self._earlier]:
            os.close(reader)
        self._readers, self._earlier = [], []


def _read(parent: socket.socket, readers: list[int], let_go: Callable[[], None]) -> NoReturn:
    """Be the fork: wait until PID 1 has closed its ends, send what is in the pipes, and end."""
    try:
        let_go()
        parent.recv(1)
        for reader in readers:
            data = b""
            while len(data) <= MAX_BYTES and await_input(reader, 0) and (more := os.read(reader, MAX_BYTES + 1)):
                data += more
            parent.sendall(len(data).to_bytes(4, "big") + data)
    finally:
        os._exit(0)


def _heard(fork: socket.socket, readers: list[int], deadline: float) -> tuple[bytes, bytes]:
    """Close the pipes, which the fork has, too, and return what it reads in them."""
    for reader in readers:
        os.close(reader)
    with contextlib.suppress(OSError):
        fork.send(b"\0")
        data = b""
        while await_input(fork.fileno(), deadline - time.monotonic()) and (more := fork.recv(2 * MAX_BYTES)):
            data += more
        size = int.from_bytes(data[:4], "big")
        return data[4 : 4 + size], data[8 + size :]
    return b"", b""


def _told(generation: int, name: StreamName, data: bytes) -> Iterator[Printed]:
    text = data[:MAX_BYTES].decode("utf-8", "replace")
    if len(data) > MAX_BYTES:
        text += LEFT_OUT
    most = MAX_TEXT // 4  # characters, of at most four bytes each
    for start in range(0, len(text), most):
        yield Printed(generation, name, text[start : start + most])
