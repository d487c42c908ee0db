"""The sandbox and the kernel that serve a session now, and what became of the variables of those before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from agent_tools.engines.engine import Engine
from agent_tools.errors import CheckpointMissing, KernelDied, KernelError
from agent_tools.results.execution import Died, Output, Restarted, TimedOut
from agent_tools.results.variables import LOST, Mark, because
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.kernel.channel import NoCheckpoint
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.kernels import hindrance
from agent_tools.runtime.sandbox.sandbox import RunningSandbox
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox, Branch

_NONE_NOW = (
    "No checkpoint can be taken now: none is while threads of the code, or processes that it has started, are running. "
    "Let them end first."
)
StartSandbox = Callable[[Engine, SessionSpec, Quota], AnySandbox]
"""Gives a sandbox, made now or ahead."""


class Succession:
    """For the thread whose turn it is, but for reading `sandbox`."""

    def __init__(self, engine: Engine, spec: SessionSpec, start: StartSandbox = RunningSandbox) -> None:
        self.spec = spec
        """The makings of the next sandbox."""
        self.sandbox: AnySandbox | None = None
        self.lost: Restarted | None = None
        """What the next run has to tell of a kernel that was lost."""
        self.is_condemned = False
        """True while the kernel is to make way for a fresh one: it was asked for, so there is nothing to tell."""
        self.engine = engine
        self._start = start
        self._quota = Quota(spec.work_dir, spec.limits)

    def kernel(self, *, wakes: bool = True) -> Kernel:
        """Return a live kernel. One that has ended makes way for its checkpoint, if `wakes`, or for a fresh one.

        Raises:
            EngineError: a sandbox was needed and could not be started.
            InvalidParams: work_dir lies in that of another live sandbox, or holds one.
        """
        sandbox = self.sandbox
        has_work_dir = not sandbox or sandbox.has_work_dir
        if sandbox and sandbox.kernel and has_work_dir:
            if self.is_condemned:
                sandbox.kernel.end()
            if sandbox.kernel.is_alive():
                return sandbox.kernel
        kernel = None
        if sandbox:
            self.lost = Restarted(sandbox.kernel.end_reason) if sandbox.kernel else self.lost
            self.lost = self.lost if has_work_dir else Restarted("its work_dir was replaced")
            kernel = self._replaced(sandbox, wakes=wakes and not self.is_condemned)
        if kernel is None:
            self.sandbox = self._start(self.engine, self.spec, self._quota)
            kernel = self.sandbox.kernel
        assert kernel is not None
        if self.is_condemned:
            self.is_condemned, self.lost = False, None
        return kernel

    def take_sandbox(self) -> AnySandbox | None:
        """Return the sandbox, which serves no more, and forget what was to be told of its kernels."""
        sandbox, self.sandbox = self.sandbox, None
        self.is_condemned, self.lost = False, None
        return sandbox

    def take_lost(self) -> Restarted | None:
        """Return what is to be told of a kernel that was lost, once."""
        lost, self.lost = self.lost, None
        return lost

    def told(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """Yield outputs; where they end with the kernel, say what became of the variables, once that is known."""
        ending: Died | TimedOut | None = None
        for output in outputs:
            if isinstance(output, Died) or (isinstance(output, TimedOut) and not output.state_kept):
                ending = output
            else:
                yield output
        if ending and self.sandbox:
            wakes = not self.is_condemned
            variables = self.sandbox.wake_kernel(self.spec.limits.restart_timeout) if wakes else LOST
            if isinstance(ending, TimedOut):
                ending = replace(ending, state_kept=variables.kept)
            yield replace(ending, variables=variables)

    def undo(self) -> None:
        """Go back to before the last cell, unless its crash has done so. Errors as for `Session.undo`."""
        kernel = self._kernel_with_checkpoints()
        assert self.sandbox
        if self.sandbox.runs.is_taken_back:
            self.sandbox.runs.is_taken_back = False
            return
        run = self.sandbox.runs.before_last_cell()
        if run is None:
            raise CheckpointMissing("There is nothing to undo: no code has run since the kernel was started.")
        with self.sandbox.use():
            kernel.settle(self.spec.limits.restart_timeout)
        self._go_back(run, "of the moment before the last code")

    def mark(self) -> Mark:
        """Keep the state of now. Errors as for `Session.checkpoint`."""
        kernel = self._kernel_with_checkpoints()
        assert self.sandbox
        with self.sandbox.use():
            run = kernel.mark(self.spec.limits.restart_timeout)
        if not run:
            raise CheckpointMissing(_NONE_NOW)
        return Mark(self.sandbox.lineage, run)

    def branch(self) -> Branch:
        """Start a branch from the state of now. Errors as for `Session.branch`."""
        self._kernel_with_checkpoints()
        assert self.sandbox
        try:
            with self.sandbox.use():
                return Branch(self.sandbox, self.spec)
        except NoCheckpoint as exc:
            raise CheckpointMissing(_NONE_NOW) from exc

    def rollback(self, mark: Mark) -> None:
        """Go to a mark. Errors as for `Session.rollback`."""
        self._kernel_with_checkpoints()
        assert self.sandbox
        if mark.sandbox != self.sandbox.lineage:
            raise CheckpointMissing("The checkpoint went with its sandbox, or belongs to another one.")
        self._go_back(mark.run, "of that moment any more")

    def _kernel_with_checkpoints(self) -> Kernel:
        if not self.spec.checkpoint:
            raise CheckpointMissing("Checkpoints are off (checkpoint=False).")
        return self.kernel()

    def _go_back(self, run: int, which: str) -> None:
        assert self.sandbox
        try:
            self.sandbox.go_back(run, self.spec.limits.restart_timeout)
        except NoCheckpoint as exc:
            why = because(hindrance(str(exc)))
            raise CheckpointMissing(f"There is no checkpoint {which}{why}; variables are as they were.") from exc
        except KernelDied as exc:
            told = f"The checkpoint did not go on ({exc}); the next code says what has become of variables."
            raise KernelDied(told) from exc

    def _replaced(self, sandbox: AnySandbox, *, wakes: bool) -> Kernel | None:
        """Have another kernel in the same sandbox; close the sandbox and return None where that fails."""
        if not sandbox.has_ended and sandbox.has_work_dir:
            patience = self.spec.limits.restart_timeout
            variables = sandbox.wake_kernel(patience) if wakes else LOST
            self.lost = replace(self.lost, variables=variables) if self.lost else None
            if variables.kept:
                return sandbox.kernel
            with contextlib.suppress(KernelError, OSError):
                return sandbox.start_kernel(patience)
        self.sandbox = None
        sandbox.close()
        return None
