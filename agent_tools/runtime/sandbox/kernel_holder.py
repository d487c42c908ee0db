"""Objects that have one kernel at a time: a running sandbox, or a branch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.kernel.run_numbers import RunNumbers
from agent_tools.runtime.sandbox.branches import KernelBranches
from agent_tools.runtime.sandbox.kernels import Kernels


class KernelHolder(ABC):
    """Operations on the present kernel of a sandbox or branch."""

    kernels: Kernels
    branches: KernelBranches
    """Those made of its kernel."""
    is_removed = False
    """True once it was ended from here."""

    @abstractmethod
    def use(self) -> AbstractContextManager[None]:
        """Continue a sandbox that was stopped as idle, and keep it running during the block."""

    @abstractmethod
    def start_kernel(self, timeout: float) -> Kernel:
        """Start a kernel within `timeout` seconds, and connect to it.

        Raises:
            KernelDied: it did not start.
        """

    @property
    def kernel(self) -> Kernel | None:
        """The present kernel; None once its connection is closed."""
        return self.kernels.current

    @property
    def runs(self) -> RunNumbers:
        """The runs of its kernels."""
        return self.kernels.runs

    def go_back(self, run: int, timeout: float) -> None:
        """Replace the live kernel by the checkpoint of this run, or by a fresh kernel for 0.

        Raises:
            NoCheckpoint: there is none; the kernel is unchanged.
            KernelDied: it did not start.
        """
        with self.use():
            if run:
                self.kernels.wake(time.monotonic() + timeout, run)
            else:
                self.start_kernel(timeout)

    def define(self, source: str, seconds: float) -> None:
        """Run internal code in the kernel. Errors as for `Kernels.define`."""
        with self.use():
            self.kernels.define(source, seconds)

    def keep_prelude(self, prelude: str) -> None:
        """Run this prelude in every later kernel."""
        self.kernels.prelude = prelude
