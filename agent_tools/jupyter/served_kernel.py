"""A kernel for Jupyter's clients: one sandbox, and a new kernel in it after each restart."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.kernel_life import KernelLife
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Options

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime


class ServedKernel:
    """Nothing starts before `start`. Any thread may call any method.

    Args:
        cfg: the options of `Sandbox`. Without `work_dir`, it has its own folder, which is deleted with it.
        runtime: the owner of the sandboxes; the shared one by default.
        is_plain: leave out content that a page would execute: HTML, scripts, SVG and widgets.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    def __init__(self, cfg: Config, runtime: Runtime | None = None, *, is_plain: bool = False) -> None:
        self._is_plain = is_plain
        self._opening = Opening(Options.read(cfg), runtime, takes_functions=False)
        self._life: KernelLife | None = None
        self._lock = threading.Lock()

    def start(self, info: ConnectionInfo) -> None:
        """Start a kernel for clients at this connection; it replaces the one before, in the same sandbox.

        Raises:
            AgentToolsError: the sandbox or the kernel could not be started.
            OSError: a socket could not be bound.
        """
        with self._lock:
            self._end_life()
            session = self._opening.session()
            self._life = KernelLife(session, info, self._opening.options.audit, is_plain=self._is_plain)

    @property
    def exit_code(self) -> int | None:
        """None while a kernel runs; 0 after an ordered end, or before the first start; else 1."""
        life = self._life
        return life.exit_code if life else 0

    def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C would."""
        if life := self._life:
            life.interrupt()

    def kill(self) -> None:
        """End the kernel; the sandbox stays, for the next one."""
        with self._lock:
            self._end_life()

    def close(self) -> None:
        """End the kernel and remove the sandbox, and the folder if it is its own."""
        with self._lock:
            self._end_life()
            self._opening.close()

    def _end_life(self) -> None:
        if self._life:
            self._life.stop()
