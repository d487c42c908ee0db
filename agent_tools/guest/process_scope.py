"""The processes that may be ended by a holder of kernels: all of the sandbox by PID 1, descendants by a supervisor."""

import contextlib
import os
import signal
from collections.abc import Collection

from .processes import has_children, kill_all_but, kill_below, kill_branch, kill_offspring, kill_subreaper, processes


class WholeSandbox:
    """All processes of the sandbox. Without being PID 1 it sends nothing, since it would reach processes of a host.

    `kept` are processes that are never ended: PID 1 speaks to the host through them.
    """

    def __init__(self, kept: Collection[int] = ()) -> None:
        self._kept = frozenset(kept)

    def kill_all_but(self, spared: Collection[int]) -> None:
        """Kill all but these, their descendants, and PID 1."""
        spared = self._kept.union(spared)
        if not spared:
            self.signal(signal.SIGKILL)
        elif os.getpid() == 1:
            kill_all_but(spared)

    def kill_branch(self, pid: int) -> bool:
        """Kill the supervisor of a branch and its descendants, in one step that none of them escapes.

        Return False if it had died before, leaving them.
        """
        return os.getpid() == 1 and kill_branch(pid)

    def signal(self, number: int) -> None:
        """Send a signal to every process but PID 1, in one step."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpid() == 1:
                os.kill(-1, number)


class Descendants:
    """All descendants of this process, which adopts its orphans.

    Every process is stopped meanwhile only where PID 1 is ours: elsewhere they are processes of a host.
    """

    def __init__(self, *, has_pid_1: bool) -> None:
        self._has_pid_1 = has_pid_1

    def kill_all_but(self, spared: Collection[int]) -> None:
        """Kill all but these, and their descendants. Without a child no process is stopped for it."""
        if not has_children():
            return
        if self._has_pid_1:
            kill_offspring(spared)
        else:
            kill_below(os.getpid(), spared)

    def kill_branch(self, pid: int) -> bool:
        """Kill it after, or together with, its descendants; return as above."""
        if self._has_pid_1:
            return kill_branch(pid)
        is_there = pid in processes()
        kill_subreaper(pid)
        return is_there

    def signal(self, number: int) -> None:
        """Do nothing: the host orders PID 1 to signal the whole sandbox."""


ProcessScope = WholeSandbox | Descendants
