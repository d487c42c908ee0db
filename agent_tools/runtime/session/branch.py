"""A branch of a running sandbox: another kernel, forked from the present one or fresh, with its own variables.

It shares files, commands, network, quota and end with the sandbox. A supervisor in the sandbox
(guest/pid1/supervisor.py) runs its kernels, with PID 1's protocol over stdio. User code can reach the supervisor, so
only the branch itself depends on it: PID 1 ends one that does not answer.
"""

from __future__ import annotations

import itertools
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Union

from agent_tools.errors import KernelDied
from agent_tools.machine.background import Do, do_now
from agent_tools.results.variables import LOST, Hindrance, Variables
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.branches import KernelBranches
from agent_tools.runtime.sandbox.kernel_holder import KernelHolder
from agent_tools.runtime.sandbox.kernels import Kernels
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.transport.socket_stdio import SocketStdio
from agent_tools.runtime.transport.transport import StdioTransport


class KernelBranch(KernelHolder):
    """A branch, forked from the idle kernel of its parent, or with fresh kernels. `close` releases everything.

    Raises:
        NoCheckpoint: the parent's kernel cannot be copied now.
        KernelDied: the branch did not start.
        InvalidParams: the sandbox has too many.
    """

    def __init__(self, parent: AnySandbox, spec: SessionSpec, *, is_fresh: bool = False) -> None:
        self._is_fresh = is_fresh
        self.spec = replace(spec, host_calls=spec.host_calls.sibling() if spec.host_calls else None)
        """The specification of its session."""
        self._parent = parent
        self._maker: AnySandbox = parent.root if is_fresh else parent  # whose first process forks its supervisor
        self.root: LiveSandbox = parent.root
        """The sandbox that it runs in."""
        self.branches: KernelBranches = KernelBranches(parent.branches.room)
        with ExitStack() as undo:
            parent.branches.room.take_slot()
            undo.callback(parent.branches.room.leave)
            if self.spec.host_calls:
                undo.callback(self.spec.host_calls.close)
            parent.branches.had_any = True
            made: Kernels = self._maker.kernels
            self._number, connected = made.open_branch() if is_fresh else made.fork(spec.limits.start_timeout)
            self._stdio = SocketStdio(connected)
            undo.callback(self._stdio.close)
            undo.callback(self.remove)
            self._transport = StdioTransport()
            undo.callback(self._transport.close)
            deadline = time.monotonic() + spec.limits.start_timeout
            lifeline = self._transport.await_guest(self._stdio, deadline, lambda: not parent.has_ended)
            if lifeline is None:
                raise KernelDied("its supervisor did not come up")
            self._lifeline = lifeline
            begins = self.spec if is_fresh else replace(self.spec, prelude="")  # which the state of a copy knows
            self.kernels: Kernels = Kernels(begins, self._transport, lifeline, itertools.count(1))
            undo.callback(self.kernels.drop)
            self.kernels.start(deadline)
            self._undo = undo.pop_all()

    @property
    def siblings(self) -> KernelBranches:
        """The branches of its parent, with itself."""
        return self._parent.branches

    @property
    def lineage(self) -> str:
        """A name for its kernels, which marks belong to."""
        return f"{self._parent.lineage}/{self._number}"

    @property
    def has_ended(self) -> bool:
        """True once its supervisor is gone, or was found not to answer, or the sandbox is gone."""
        return self._lifeline.has_ended or self._parent.has_ended

    @property
    def is_usable(self) -> bool:
        """True while it lives, and its sandbox takes commands and serves its files."""
        return not self._lifeline.is_hung_up() and self.root.is_usable

    def start_kernel(self, timeout: float) -> Kernel:
        """Start a kernel, which goes on from the moment of the fork if there was one, within `timeout` seconds.

        Raises:
            KernelDied: it did not start.
        """
        with self.use():
            return self.kernels.start(time.monotonic() + timeout)

    def wake_kernel(self, timeout: float) -> Variables:
        """Continue another kernel, from the latest checkpoint or from the moment of the fork, if there was one."""
        if self.has_ended or not self.root.has_work_dir:
            return LOST
        deadline = time.monotonic() + timeout
        with self.use():
            variables = self.kernels.go_back(deadline)
            is_over = variables.kept or self._is_fresh
            return variables if is_over else self._begin_again(deadline, variables.hindrance)

    def _begin_again(self, deadline: float, why: Hindrance) -> Variables:
        undone = self.runs.cells
        try:
            self.kernels.start(deadline)
        except (KernelDied, OSError):
            return LOST
        return Variables(True, undone, why)

    def use(self) -> AbstractContextManager[None]:
        """Around a use, as for `LiveSandbox.use`."""
        return self.root.use()

    def finish(self) -> None:
        """As for `LiveSandbox.finish`; not in a fork, which would write again what its origin buffers, too."""
        if self.kernel and self._is_fresh and not self.has_ended:
            with self.use():
                self.kernel.finish()

    def end(self, behind: Do) -> None:
        """End all code of the branch. Call it with the session's lock."""
        if self.kernel and not self._parent.is_removed:
            with self.use():
                self.kernel.end()
        self.remove()

    def remove(self, do: Do = do_now) -> None:
        """End the branch at once, and those made of it; safe while another thread still reads from it."""
        if not self.is_removed:
            self.is_removed = True
            self.branches.close()
            do(self._remove)

    def _remove(self) -> None:
        if not self._maker.is_removed:
            with self.use():
                self._maker.kernels.end_branch(self._number)
        self._stdio.hang_up()

    def close(self) -> None:
        """Release everything, in reverse order."""
        self._undo.close()


AnySandbox = Union[LiveSandbox, KernelBranch]
