"""The state of a session as an archive: the files of work_dir, and the variables of its kernel.

The kernel itself pickles and unpickles, in the sandbox (guest/variables/). Here it is only told to, in
code that is no cell of anybody's, between two runs. It forks to save, so the next run need not wait until all is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Protocol

from agent_tools.errors import KernelError
from agent_tools.results.execution import Died, Error, TimedOut
from agent_tools.results.variables import VariablesReport
from agent_tools.runtime.files.archives import Archives, Pieces, WithVariables
from agent_tools.runtime.kernel.runs import RunKind
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox
from agent_tools.text import one_line

_SAVE = "__import__('sandbox').save_variables({address!r}, {bytes}, {seconds!r}, {most})"
_LOAD = "__import__('sandbox').load_variables({address!r}, {seconds!r})"
MAX_PROBLEM = 500  # characters


class BetweenRuns(Protocol):
    """The part of a session that is needed here."""

    @property
    def spec(self) -> SessionSpec:
        """Its makings."""
        ...

    def between_runs(self) -> AbstractContextManager[AnySandbox]:
        """Hold the turn, with a kernel that waits for code."""
        ...


def save(session: BetweenRuns, path: str, most: int, write: Callable[[bytes], object]) -> VariablesReport:
    """Write an archive with variables, at most so many bytes, piece by piece; return what became of these.

    Only until the first piece comes is the session kept from running code.

    Raises:
        KernelError: the kernel could not begin.
        OSError: the folder cannot be read, or the kernel broke off; EFBIG beyond `most` bytes.
        SandboxGone, SessionClosed, SessionBusy, EngineError: as for a run.
    """
    limits = session.spec.limits
    bounds = {"bytes": limits.max_variables_bytes, "seconds": limits.variables_timeout, "most": limits.max_variables}
    with ExitStack() as until_the_end:
        with session.between_runs() as sandbox:
            saving = until_the_end.enter_context(Archives(sandbox.files, limits).saving(path))
            source = _SAVE.format(address=saving.address, **bounds)
            if problem := _done(sandbox, source, limits.variables_timeout, "definition"):
                raise KernelError(f"The variables could not be saved: {problem}")
        for piece in saving.content(most):
            write(piece)
        return saving.report()


def load(session: BetweenRuns, path: str, archive: Pieces) -> VariablesReport:
    """Unpack an archive with variables into a folder, and set them in the kernel; return what became of them.

    Raises:
        OSError: the folder cannot be written, or the archive is none.
        SandboxGone, SessionClosed, SessionBusy, EngineError: as for a run.
    """
    limits = session.spec.limits
    seconds = limits.sync_timeout + limits.variables_timeout
    with session.between_runs() as sandbox, Archives(sandbox.files, limits).loading(path) as loading:
        giving = _Giving(loading, archive)
        source = _LOAD.format(address=loading.address, seconds=limits.variables_timeout)
        problem = _done(sandbox, source, seconds, "load")
        giving.await_end()
        report = loading.report()
    return replace(report, problem=problem) if problem else report


def _done(sandbox: AnySandbox, source: str, seconds: float, kind: RunKind) -> str:
    """Let the kernel run code that leaves no trace; return what went wrong, '' if nothing did."""
    assert sandbox.kernel
    problem = ""
    for output in sandbox.kernel.execute(source, seconds, kind=kind):
        match output:
            case Error(name, value):
                problem = f"{name}: {value}"
            case TimedOut() | Died():
                problem = sandbox.kernel.end_reason or f"it took longer than {seconds:g} s"
    return one_line(problem[:MAX_PROBLEM])


class _Giving:
    """Sends an archive in a thread, while the kernel takes from it."""

    def __init__(self, loading: WithVariables, archive: Pieces) -> None:
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._give, args=(loading, archive), name="load-variables", daemon=True)
        self._thread.start()

    def await_end(self) -> None:
        """Wait until all is sent, which has a time limit of its own. Raises what went wrong."""
        self._thread.join()
        if self._failure:
            raise self._failure

    def _give(self, loading: WithVariables, archive: Pieces) -> None:
        try:
            loading.give(archive)
        except Exception as exc:  # noqa: BLE001  (raised again by await_end; reading the archive may raise anything)
            self._failure = exc
