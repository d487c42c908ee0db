"""The launcher: the kernel as a program, for clients that know no provisioners, such as VS Code, Zed and Quarto.

It ends with its kernel. SIGINT interrupts the code; SIGTERM, SIGHUP, or the end of the process that started it, end
the kernel; after SIGKILL the sandbox ends with its lifeline.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType

from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.served_kernel import ServedKernel
from agent_tools.sandbox.options import Config

CHECK_SECONDS = 0.1  # seconds between two checks whether the kernel, or the parent process, has ended


def launch(connection_file: Path, cfg: Config, *, is_plain: bool = False) -> int:
    """Serve a kernel until its end; return its exit code.

    Raises:
        AgentToolsError: the sandbox or the kernel could not be started.
        OSError: a socket could not be bound.
    """
    info, parent = ConnectionInfo.load(connection_file), os.getppid()
    kernel = ServedKernel(cfg, is_plain=is_plain)
    ending = _Ending(kernel)
    try:
        kernel.start(info)
        while kernel.exit_code is None and not ending.was_asked and os.getppid() == parent:
            time.sleep(CHECK_SECONDS)
        return 0 if ending.was_asked else kernel.exit_code or 0
    finally:
        kernel.close()


class _Ending:
    """The signals of a kernel's process."""

    def __init__(self, kernel: ServedKernel) -> None:
        self.was_asked = False
        self._kernel = kernel
        signal.signal(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._kernel.interrupt()

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self.was_asked = True
