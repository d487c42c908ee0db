"""The branches that were made of one kernel, each with a session of its own, and how many a sandbox may have."""

from __future__ import annotations

import threading
from typing import Protocol

from agent_tools.errors import InvalidParams
from agent_tools.execution import Cause


class BranchLike(Protocol):
    """A branch, as the one sees it that it was made of."""

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and that of branches made of it; the variables come back with its next run."""
        ...

    def close(self) -> None:
        """End it, and the branches made of it."""
        ...


class Room:
    """Room for the branches of a sandbox, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> None:
        """Make room for one.

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
        """Note that one is gone."""
        with self._lock:
            self._taken -= 1


class Branches:
    """Those made of one kernel. Thread-safe."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.had_any = False
        """Whether code may have run in one."""
        self._lock = threading.Lock()
        self._open: list[BranchLike] = []
        self._is_closed = False

    def add(self, branch: BranchLike) -> None:
        """Note that one is open; it is closed at once where all have been."""
        with self._lock:
            self._open.append(branch)
            is_late = self._is_closed
        if is_late:
            branch.close()

    def remove(self, branch: BranchLike) -> None:
        """Note that one is closed; one that is not known is no error."""
        with self._lock:
            self._open = [each for each in self._open if each is not branch]

    def kill(self, reason: str, cause: Cause) -> None:
        """End the code of all of them."""
        for branch in self._all():
            branch.kill(reason, cause)

    def close(self) -> None:
        """End all of them, and those that come later."""
        with self._lock:
            self._is_closed = True
        for branch in self._all():
            branch.close()

    def _all(self) -> list[BranchLike]:
        with self._lock:
            return list(self._open)
