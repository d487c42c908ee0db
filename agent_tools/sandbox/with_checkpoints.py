"""The variables of a sandbox as something to go back to, and to go on from twice."""

from __future__ import annotations

from typing import TypeVar

from agent_tools.checkpoint import Mark
from agent_tools.errors import InvalidParams
from agent_tools.sandbox.forked import ForkedOpening
from agent_tools.sandbox.opening import Opening

Self = TypeVar("Self", bound="WithCheckpoints")


class WithCheckpoints:
    """Takes the variables back, and forks. Files stay as they are."""

    _opening: Opening

    def undo(self) -> None:
        """Take the variables back to where they were before the last code; files stay as they are.

        Raises:
            CheckpointMissing: no code has run, or there is no checkpoint of the moment before it.
            KernelDied: the checkpoint did not go on in time, or at all.
        """
        self._opening.session().undo()

    def checkpoint(self) -> Mark:
        """Keep the variables as they are now, for `rollback`. Up to 16 are kept, until a restart.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
        """
        return self._opening.session().checkpoint()

    def rollback(self, mark: Mark) -> None:
        """Take the variables to where they were at a mark, as often as you like; files stay as they are.

        Raises:
            CheckpointMissing: the mark is kept no more; the variables are as they were.
            KernelDied: the checkpoint did not go on in time, or at all.
            InvalidParams: the mark is none.
        """
        if not isinstance(mark, Mark):
            raise InvalidParams(f"{mark!r:.80} is no mark: give what `checkpoint` returned.")
        self._opening.session().rollback(mark)

    def fork(self: Self) -> Self:
        """Return another kernel in the same container, which goes on from the variables as they are now.

        Both go on independently, also at the same time: each has its own variables, time limits, interrupts,
        checkpoints and calls of host functions. Files, commands, network, memory and CPUs are the container's. Up to 32
        (`max_branches`) are open at once, forks of forks included. `undo` leads back to the fork at most, and so does
        `restart`. Closing a fork ends its code, and the forks made of it; closing the sandbox ends all of them.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
            InvalidParams: there are too many forks.
            KernelDied: the fork did not come up within `restart_timeout`.
            EngineError: a container was needed and could not be started.
        """
        forked = object.__new__(type(self))
        vars(forked).update(vars(self), _opening=ForkedOpening(self._opening))
        return forked
