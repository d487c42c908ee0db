"""The session of a branch: one kernel of a sandbox that another session owns."""

from __future__ import annotations

from agent_tools.engines.engine import Engine
from agent_tools.errors import InvalidParams, SandboxGone
from agent_tools.results.execution import Cause
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox, Branch
from agent_tools.runtime.session.session import Session


class BranchSession(Session):
    """Open until it is closed, or what it was forked from is. A branch that ended is not replaced."""

    def __init__(self, engine: Engine, branch: Branch) -> None:
        super().__init__(engine, branch.spec, start=_Once(branch))
        self._branch = branch
        self.open()
        branch.siblings.add(self)

    def reset(self) -> None:
        """Refuse: what is to be emptied belongs to the whole sandbox.

        Raises:
            InvalidParams: always.
        """
        raise InvalidParams("A fork cannot be reset: its files are the sandbox's. Reset the sandbox, or restart this.")

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and that of branches made of it."""
        if kernel := self._branch.kernel:
            kernel.kill(reason, cause)
        self._branch.branches.kill(reason, cause)

    def close(self) -> None:
        """End all code of the branch, and of those made of it. Closing again, or in a forked child, does nothing."""
        self._branch.siblings.remove(self)
        super().close()


def fork(session: Session) -> BranchSession:
    """Return a session that goes on from the state of another one, beside it.

    Raises:
        CheckpointMissing: the kernel cannot be copied now.
        InvalidParams: the sandbox has too many.
        KernelDied: the branch did not come up.
        EngineError: a sandbox was needed and could not be started.
    """
    return BranchSession(session.serving.engine, session.branch())


class _Once:
    """Gives the branch, and nothing in its place once it has ended."""

    def __init__(self, branch: Branch) -> None:
        self._branch: Branch | None = branch

    def __call__(self, _engine: Engine, _spec: SessionSpec, _quota: Quota) -> AnySandbox:
        branch, self._branch = self._branch, None
        if branch is None:
            raise SandboxGone("The fork has ended, with its variables. Fork again; the files are in the sandbox.")
        return branch
