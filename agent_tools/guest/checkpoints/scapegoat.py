"""A process that holds nothing, for the memory limit to end while what a copy held is given back.

Linux takes a process that it ended for gone a moment before its memory is free, and huge pages are given back last of
all. Code that asks for more in that moment has the next process ended, which would be the kernel.
"""

import contextlib
import os
import signal

from . import memory

PROGRAM = ("/bin/sleep", "infinity")
SCORE = 999  # oom_score_adj: after the copies, and before a kernel of any size


class Scapegoat:
    """There while it is wanted; code can end it, and has only itself to blame."""

    def __init__(self) -> None:
        self.pid = 0

    def want(self, is_wanted: bool) -> None:
        """Have it, or have it no more."""
        if is_wanted and not self.pid:
            with contextlib.suppress(OSError):  # no room for a process
                self._start()
        elif not is_wanted and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0  # while this one ends, the next may be wanted

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it is this one."""
        is_gone = pid == self.pid
        if is_gone:
            self.pid = 0
        return is_gone

    def _start(self) -> None:
        null = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in range(3)]
        self.pid = os.posix_spawn(PROGRAM[0], PROGRAM, {}, file_actions=null, setsid=True)
        memory.rank(self.pid, SCORE)
