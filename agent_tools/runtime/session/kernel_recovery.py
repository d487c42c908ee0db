"""The sandbox and the kernel of a session now, and their replacement when one of them has ended."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

from agent_tools.engines.engine import Engine
from agent_tools.errors import KernelError
from agent_tools.results.execution import Died, Output, Restarted, TimedOut
from agent_tools.results.variables import LOST
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox

LATE_SECONDS = 2.0  # seconds until a checkpoint must be ready after the time limit: a call has 3 s to return in
StartSandbox = Callable[[Engine, SessionSpec, Quota], AnySandbox]
"""Returns a sandbox that was started now or ahead."""


class KernelRecovery:
    """Not thread-safe: call it with the session's lock. `sandbox` may be read without."""

    def __init__(self, engine: Engine, spec: SessionSpec, start: StartSandbox = LiveSandbox) -> None:
        self.spec = spec
        """Everything needed to start the next sandbox."""
        self.sandbox: AnySandbox | None = None
        self.lost: Restarted | None = None
        """The report of a lost kernel, for the next run."""
        self.is_condemned = False
        """True after an order to replace the kernel: its end is then no loss to report."""
        self.engine = engine
        self._start = start
        self._quota = Quota(spec.work_dir, spec.limits)

    def kernel(self, *, wakes: bool = True) -> Kernel:
        """Return a live kernel. One that has ended is replaced by its checkpoint, if `wakes`, or by a fresh one.

        Errors as for `Sandbox.run_code`.
        """
        sandbox = self.sandbox
        has_work_dir = not sandbox or sandbox.root.has_work_dir
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
            kernel.background.clear()
        return kernel

    def take_sandbox(self) -> AnySandbox | None:
        """Return the sandbox, which serves no more, and forget all reports of its kernels."""
        sandbox, self.sandbox = self.sandbox, None
        self.is_condemned, self.lost = False, None
        return sandbox

    def take_lost(self) -> Restarted | None:
        """Return the report of a lost kernel, once."""
        lost, self.lost = self.lost, None
        return lost

    def after(self, ending: Died | TimedOut, left: float = math.inf) -> Output:
        """Wake the checkpoint of a kernel that ended in a run; return that ending with the state of the variables.

        `left` are the seconds that the run still had.
        """
        variables, timeout = LOST, min(self.spec.limits.restart_timeout, LATE_SECONDS + max(0.0, left))
        if self.sandbox and not self.is_condemned:
            variables = self.sandbox.wake_kernel(timeout)
        if isinstance(ending, TimedOut):
            ending = replace(ending, state_kept=variables.kept)
        return replace(ending, variables=variables)

    def _replaced(self, sandbox: AnySandbox, *, wakes: bool) -> Kernel | None:
        """Start another kernel in the same sandbox; close the sandbox and return None where that fails."""
        if not sandbox.has_ended and sandbox.root.has_work_dir:
            timeout = self.spec.limits.restart_timeout
            variables = sandbox.wake_kernel(timeout) if wakes else LOST
            self.lost = replace(self.lost, variables=variables) if self.lost else None
            if variables.kept:
                return sandbox.kernel
            with contextlib.suppress(KernelError, OSError):
                return sandbox.start_kernel(timeout)
        self.sandbox = None
        sandbox.close()
        return None
