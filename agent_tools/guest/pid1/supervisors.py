"""The supervisors of branches: processes that go on from a copy of the kernel, each with a kernel of its own.

PID 1 knows a supervisor by the pid that the operating system reports with its first word. A supervisor and its
descendants outlive the kernel that it was forked from.
"""

import contextlib
import socket
from collections.abc import Callable

from ..checkpoints import datagrams
from ..checkpoints.datagrams import AWAKE


class Supervisors:
    """The supervisors that one process has made, by the numbers of their orders: PID 1, or a supervisor in turn."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._awaited: dict[int, socket.socket] = {}

    @property
    def pids(self) -> set[int]:
        """The pids of the supervisors, which outlive the kernel."""
        return set(self._pids.values())

    def filenos(self) -> list[int]:
        """Return the descriptors on which supervisors say that they are awake."""
        return [line.fileno() for line in self._awaited.values()]

    def add(self, number: int, pid: int) -> None:
        """Note a supervisor that this process has forked itself."""
        self._pids[number] = pid

    def expect(self, number: int) -> socket.socket:
        """Expect a supervisor; return its end of a line, which the caller closes."""
        self._awaited[number], theirs = datagrams.pair()
        return theirs

    def hear(self, is_child: Callable[[int], bool]) -> None:
        """Read what has come: a child that says it is awake is the expected supervisor."""
        for number, line in list(self._awaited.items()):
            with contextlib.suppress(BlockingIOError):
                word, pid = datagrams.receive(line) or (b"", 0)
                if word == AWAKE and is_child(pid):
                    self._pids[number] = pid
                self._await_no_more(number)

    def end(self, number: int) -> int:
        """Forget a supervisor; return its pid, 0 if there is none of this number."""
        self._await_no_more(number)
        return self._pids.pop(number, 0)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was a supervisor."""
        is_known = pid in self.pids
        self._pids = {number: each for number, each in self._pids.items() if each != pid}
        return is_known

    def close(self) -> None:
        """Close everything, in a fork."""
        for number in list(self._awaited):
            self._await_no_more(number)

    def _await_no_more(self, number: int) -> None:
        if line := self._awaited.pop(number, None):
            line.close()
