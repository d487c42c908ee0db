"""The branches of one kernel, each with its own session, and the limit for a sandbox."""

from __future__ import annotations

import threading
from typing import Protocol

from agent_tools.errors import InvalidParams
from agent_tools.machine.background import do_all
from agent_tools.results.execution import Cause


class BranchLike(Protocol):
    """The interface of a branch to its parent."""

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and the code of its branches; its next run restores the variables."""
        ...

    def close(self) -> None:
        """End the branch, and its own branches."""
        ...


class BranchLimit:
    """Limits the branches of a sandbox to `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take_slot(self) -> None:
        """Count a new branch.

        Raises:
            InvalidParams: there are too many.
        """
        with self._lock:
            if self._taken >= self._most:
                raise InvalidParams(
                    f"The sandbox has {self._most} forks already (max_branches): close one of them first."
                )
            self._taken += 1

    def leave(self) -> None:
        """Count a closed branch."""
        with self._lock:
            self._taken -= 1


class KernelBranches:
    """The branches of one kernel. Thread-safe."""

    def __init__(self, room: BranchLimit) -> None:
        self.room = room
        self.had_any = False
        """Whether code may have run in one."""
        self._lock = threading.Lock()
        self._open: list[BranchLike] = []
        self._is_closed = False

    def add(self, branch: BranchLike) -> None:
        """Add an open branch; close it at once if `close` was called."""
        with self._lock:
            self._open.append(branch)
            is_late = self._is_closed
        if is_late:
            branch.close()

    def remove(self, branch: BranchLike) -> None:
        """Remove a closed branch; an unknown one is not an error."""
        with self._lock:
            self._open = [each for each in self._open if each is not branch]

    def kill(self, reason: str, cause: Cause) -> None:
        """End the code of all branches."""
        for branch in self._all():
            branch.kill(reason, cause)

    def close(self) -> None:
        """Close all branches, and any that are added later."""
        with self._lock:
            self._is_closed = True
        do_all(branch.close for branch in self._all())

    def _all(self) -> list[BranchLike]:
        with self._lock:
            return list(self._open)
