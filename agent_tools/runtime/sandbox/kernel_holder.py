"""A holder of kernels, one at a time: a running sandbox, or a branch of one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.kernel.runs import Runs
from agent_tools.runtime.sandbox.branches import Branches
from agent_tools.runtime.sandbox.kernels import Kernels


class KernelHolder(ABC):
    """The part of both that has to do with the kernel that serves now."""

    kernels: Kernels
    branches: Branches
    """Those made of its kernel."""
    is_removed = False
    """True once it was ended from here."""

    @abstractmethod
    def use(self) -> AbstractContextManager[None]:
        """Around a use: what was stopped for want of use goes on."""

    @abstractmethod
    def start_kernel(self, patience: float) -> Kernel:
        """Have a kernel start where kernels of this start, in at most `patience` seconds, and connect to it.

        Raises:
            KernelDied: it did not come up.
        """

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that was connected to last; None once hung up."""
        return self.kernels.current

    @property
    def runs(self) -> Runs:
        """The runs that its kernels went through."""
        return self.kernels.runs

    def go_back(self, run: int, patience: float) -> None:
        """Have the checkpoint of this run go on in place of the kernel that lives; 0: a kernel that starts does.

        Raises:
            NoCheckpoint: there is none; the kernel goes on as it is.
            KernelDied: it did not come up.
        """
        with self.use():
            if run:
                self.kernels.wake(time.monotonic() + patience, run)
            else:
                self.start_kernel(patience)

    def define(self, source: str, seconds: float) -> None:
        """Let the kernel run code that is no cell of anybody's. Errors as for `Kernels.define`."""
        with self.use():
            self.kernels.define(source, seconds)

    def keep_prelude(self, prelude: str) -> None:
        """Have every later kernel run this prelude."""
        self.kernels.prelude = prelude
