"""The variables of a session: checkpoints to go back to, and archives of files and variables.

To save variables the kernel forks, so the next run need not wait until all is saved. It pickles and unpickles in the
sandbox (guest/variables/), by code that the host sends between two runs and that is no cell of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial

from agent_tools.errors import CheckpointMissing, KernelDied, KernelError
from agent_tools.machine.background import begin
from agent_tools.results.execution import Died, Error, TimedOut
from agent_tools.results.variables import RestorePoint, VariablesReport, because
from agent_tools.runtime.files.archives import Archives, Pieces
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.kernel.channel import NoCheckpoint
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.kernel.run_numbers import RunKind
from agent_tools.runtime.sandbox.kernels import hindrance
from agent_tools.runtime.session.branch import AnySandbox, KernelBranch
from agent_tools.runtime.session.kernel_recovery import KernelRecovery
from agent_tools.text import one_line

_SAVE = "__import__('sandbox').save_variables({address!r}, {bytes}, {seconds!r}, {most})"
_LOAD = "__import__('sandbox').load_variables({address!r}, {seconds!r})"
_NONE_NOW = (
    "No checkpoint can be taken now: none is while threads of the code, or processes that it has started, are running. "
    "Let them end first."
)
MAX_PROBLEM = 500  # characters


class SessionVariables:
    """Any thread may call any method.

    `between_runs` locks the session, with a kernel that waits for code; `files` returns the files of its sandbox.
    """

    def __init__(
        self,
        recovery: KernelRecovery,
        between_runs: Callable[[], AbstractContextManager[AnySandbox]],
        files: Callable[[], GuestFiles],
    ) -> None:
        self._recovery = recovery
        self._between_runs = between_runs
        self._files = files

    def undo(self) -> None:
        """Go back to before the last cell, unless its crash has done so. Errors as for `Sandbox.undo`."""
        with self._with_checkpoints() as sandbox:
            if sandbox.runs.is_taken_back:
                sandbox.runs.is_taken_back = False
                return
            run = sandbox.runs.before_last_cell()
            if run is None:
                raise CheckpointMissing("There is nothing to undo: no code has run since the kernel was started.")
            _kernel_of(sandbox).settle(self._seconds)
            self._go_back(sandbox, run, "of the moment before the last code")

    def checkpoint(self) -> RestorePoint:
        """Save the present state for `rollback`. Errors as for `Sandbox.checkpoint`."""
        with self._with_checkpoints() as sandbox:
            run = _kernel_of(sandbox).mark(self._seconds)
            if not run:
                raise CheckpointMissing(_NONE_NOW)
            return RestorePoint(sandbox.lineage, run)

    def rollback(self, mark: RestorePoint) -> None:
        """Restore a checkpoint. Errors as for `Sandbox.rollback`."""
        with self._with_checkpoints() as sandbox:
            if mark.sandbox != sandbox.lineage:
                raise CheckpointMissing(
                    "This checkpoint no longer exists: its sandbox was replaced, or it belongs to another sandbox."
                )
            self._go_back(sandbox, mark.run, "of that moment any more")

    def branch(self) -> KernelBranch:
        """Start a kernel beside this one, from the present state. The caller must close it. Errors as for `fork`."""
        with self._with_checkpoints() as sandbox:
            try:
                return KernelBranch(sandbox, self._recovery.spec)
            except NoCheckpoint as exc:
                raise CheckpointMissing(_NONE_NOW) from exc

    def save(self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool) -> VariablesReport:
        """Write an archive of a folder, at most `most` bytes, piece by piece; return a report on the variables.

        With variables, the session is locked until the first piece comes. Errors as for `Sandbox.save`.
        """
        limits = self._recovery.spec.limits
        if not variables:
            for piece in Archives(self._files(), limits).save(path, most):
                write(piece)
            return VariablesReport()
        bounds = {"bytes": limits.max_variables_bytes, "seconds": limits.variables_timeout}
        with ExitStack() as until_the_end:
            with self._between_runs() as sandbox:
                saving = until_the_end.enter_context(Archives(sandbox.root.files, limits).saving(path))
                source = _SAVE.format(address=saving.address, most=limits.max_variables, **bounds)
                if problem := _problem(sandbox, source, limits.variables_timeout, "definition"):
                    raise KernelError(f"The variables could not be saved: {problem}")
            for piece in saving.content(most):
                write(piece)
            return saving.report()

    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport:
        """Unpack an archive into a folder, set its variables, and return a report on them.

        Errors as for `Sandbox.load`.
        """
        limits = self._recovery.spec.limits
        if not variables:
            Archives(self._files(), limits).load(path, archive)
            return VariablesReport()
        seconds = limits.sync_timeout + limits.variables_timeout
        with self._between_runs() as sandbox, Archives(sandbox.root.files, limits).loading(path) as loading:
            sending = begin(partial(loading.give, archive), "agent-tools-load")  # while the kernel takes from it
            source = _LOAD.format(address=loading.address, seconds=limits.variables_timeout)
            problem = _problem(sandbox, source, seconds, "load")
            sending.result()
            report = loading.report()
        return replace(report, problem=problem) if problem else report

    @property
    def _seconds(self) -> float:
        return self._recovery.spec.limits.start_timeout

    def _with_checkpoints(self) -> AbstractContextManager[AnySandbox]:
        if not self._recovery.spec.checkpoint:
            raise CheckpointMissing("Checkpoints are off (checkpoint=False).")
        return self._between_runs()

    def _go_back(self, sandbox: AnySandbox, run: int, which: str) -> None:
        try:
            sandbox.go_back(run, self._seconds)
        except NoCheckpoint as exc:
            why = because(hindrance(str(exc)))
            raise CheckpointMissing(f"There is no checkpoint {which}{why}; variables are as they were.") from exc
        except KernelDied as exc:
            raise KernelDied(
                f"Restoring the checkpoint failed ({exc}). The next run reports which variables are left."
            ) from exc


def _kernel_of(sandbox: AnySandbox) -> Kernel:
    assert sandbox.kernel
    return sandbox.kernel


def _problem(sandbox: AnySandbox, source: str, seconds: float, kind: RunKind) -> str:
    """Let the kernel run code that leaves no trace; return what went wrong, '' if nothing did."""
    problem = ""
    for output in _kernel_of(sandbox).execute(source, seconds, kind=kind):
        match output:
            case Error(name, value):
                problem = f"{name}: {value}"
            case TimedOut() | Died():
                problem = _kernel_of(sandbox).end_reason or f"it took longer than {seconds:g} s"
    return one_line(problem[:MAX_PROBLEM])
