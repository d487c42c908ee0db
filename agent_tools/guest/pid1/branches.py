"""The supervisors of branches: processes that go on from a copy of the kernel, each with a kernel of its own.

Whoever makes one knows it by the pid that the operating system tells of it. It outlives the kernel that it was forked
from, with all that comes from it.
"""

import contextlib
import socket
from collections.abc import Callable

from ..checkpoints import datagrams
from ..checkpoints.words import AWAKE


class Branches:
    """Those of one process: PID 1, or a supervisor whose branch was forked in turn. By the numbers of their orders."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._awaited: dict[int, socket.socket] = {}

    @property
    def pids(self) -> set[int]:
        """The processes that are to outlive the kernel."""
        return set(self._pids.values())

    def filenos(self) -> list[int]:
        """Return the descriptors on which a supervisor may say that it is awake."""
        return [line.fileno() for line in self._awaited.values()]

    def expect(self, number: int) -> socket.socket:
        """Wait for a supervisor from now on; return its end, which the caller closes."""
        self._awaited[number], theirs = datagrams.pair()
        return theirs

    def hear(self, is_child: Callable[[int], bool]) -> None:
        """Take in what has come: a child that says it is awake is the supervisor that was waited for."""
        for number, line in list(self._awaited.items()):
            with contextlib.suppress(BlockingIOError):
                told = datagrams.receive(line)
                word, pid = told or (b"", 0)
                if word == AWAKE and is_child(pid):
                    self._pids[number] = pid
                self._await_no_more(number)

    def end(self, number: int) -> int:
        """Know it no more; return its pid, 0 if there is none of this number."""
        self._await_no_more(number)
        return self._pids.pop(number, 0)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was one of them."""
        is_known = pid in self.pids
        self._pids = {number: each for number, each in self._pids.items() if each != pid}
        return is_known

    def close(self) -> None:
        """Let go of everything, in a fork."""
        for number in list(self._awaited):
            self._await_no_more(number)

    def _await_no_more(self, number: int) -> None:
        if line := self._awaited.pop(number, None):
            line.close()
