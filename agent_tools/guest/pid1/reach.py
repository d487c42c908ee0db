"""The processes that a holder of kernels may end: PID 1 all of them, the supervisor of a branch its offspring."""

import contextlib
import os
import signal
from collections.abc import Collection
from typing import Protocol

from .. import processes


class Reach(Protocol):
    """Ends processes, of those within reach."""

    def kill_all_but(self, spared: Collection[int]) -> None:
        """Kill all but these, what comes from them, and this process."""
        ...

    def kill_branch(self, pid: int) -> bool:
        """Kill the supervisor of a branch and all that comes from it. False: it has died before, and left that."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to all but this process, in one step that no fork escapes; for PID 1 only."""
        ...


class Everyone(Reach):
    """All processes of the sandbox. Nothing is sent by a process that is not PID 1: it would meet those of a host.

    `kept` are processes that nothing is to end: those that PID 1 speaks to the host through.
    """

    def __init__(self, kept: Collection[int] = ()) -> None:
        self._kept = frozenset(kept)

    def kill_all_but(self, spared: Collection[int]) -> None:
        """Kill all but these, what comes from them, and PID 1."""
        spared = self._kept.union(spared)
        if not spared:
            self.signal(signal.SIGKILL)
        elif os.getpid() == 1:
            processes.kill_all_but(spared)

    def kill_branch(self, pid: int) -> bool:
        """Kill them at once, in a step that nothing of the branch escapes."""
        return os.getpid() == 1 and processes.kill_branch(pid)

    def signal(self, number: int) -> None:
        """Send a signal to every process but PID 1, in one step."""
        with contextlib.suppress(ProcessLookupError):
            if os.getpid() == 1:
                os.kill(-1, number)


class Offspring(Reach):
    """All that comes from this process, which adopts its orphans.

    Only where PID 1 is ours is every process stopped meanwhile: elsewhere they are those of a host.
    """

    def __init__(self, *, has_pid_1: bool) -> None:
        self._has_pid_1 = has_pid_1

    def kill_all_but(self, spared: Collection[int]) -> None:
        """Kill all of it but these, and what comes from them."""
        if self._has_pid_1:
            processes.kill_offspring(spared)
        else:
            processes.kill_below(os.getpid(), spared)

    def kill_branch(self, pid: int) -> bool:
        """Kill it with all that comes from it, or that first."""
        if self._has_pid_1:
            return processes.kill_branch(pid)
        is_there = pid in processes.processes()
        processes.kill_subreaper(pid)
        return is_there

    def signal(self, number: int) -> None:
        """Do nothing: what is meant for the whole sandbox is ordered of PID 1."""
