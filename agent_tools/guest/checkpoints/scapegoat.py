"""Processes that hold nothing, for the memory limit to end while what a copy held is given back.

Linux takes a process that it ended for gone some moments before its memory is free, and huge pages are given back last
of all. Code that asks for more in these moments has the next process ended, which would be the kernel.
"""

import contextlib
import os
import signal
from typing import NoReturn

from . import memory

PROGRAM = ("/bin/sleep", "infinity")
SCORE = 999  # oom_score_adj: after the copies, and before a kernel of any size
HERD = 3  # as many; each is good for some milliseconds, of which a busy machine may need more than one's


class Scapegoats:
    """There while they are wanted; code can end them, and has only itself to blame."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def want(self, are_wanted: bool) -> None:
        """Have all of them, or none any more."""
        with contextlib.suppress(OSError):  # no room for a process
            while are_wanted and len(self.pids) < HERD:
                self._start()
        while self.pids and not are_wanted:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids.pop(), signal.SIGKILL)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it is one of them."""
        is_one = pid in self.pids
        self.pids.discard(pid)
        return is_one

    def _start(self) -> None:
        pid = os.fork()  # posix_spawn waits until the child is replaced, and code could stop the child before
        if pid == 0:
            _sleep()
        memory.rank(pid, SCORE)
        self.pids.add(pid)


def _sleep() -> NoReturn:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.execve(PROGRAM[0], PROGRAM, {})
    finally:
        os._exit(1)
