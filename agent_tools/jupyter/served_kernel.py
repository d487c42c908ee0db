"""A kernel for Jupyter's clients: a sandbox that lives as long as it, and one life of a kernel after the other."""

from __future__ import annotations

import threading

from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.life import KernelLife
from agent_tools.runtime.session.local import local
from agent_tools.runtime.sessions import RuntimeLike
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Options


class ServedKernel:
    """Nothing starts before `start`. Any thread may call any method.

    Args:
        cfg: the options of `Sandbox`. Without `work_dir`, it has a folder of its own that goes with it.
        runtime: the owner of the sandboxes; the shared one by default.
        is_plain: leave out what a page would run: HTML, scripts, SVG and widgets.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    def __init__(self, cfg: Config, runtime: RuntimeLike | None = None, *, is_plain: bool = False) -> None:
        self._is_plain = is_plain
        self._opening = Opening(Options.read(cfg), runtime, takes_functions=False)
        self._life: KernelLife | None = None
        self._lock = threading.Lock()

    def start(self, info: ConnectionInfo) -> None:
        """Start a kernel for clients at this connection, in the place of the one before and in the same sandbox.

        Raises:
            AgentToolsError: the sandbox or the kernel could not be started.
            OSError: a socket could not be bound.
        """
        with self._lock:
            self._end_life()
            self._life = KernelLife(
                local(self._opening.session(), "A kernel for Jupyter"), info, is_plain=self._is_plain
            )

    @property
    def exit_code(self) -> int | None:
        """None while a kernel runs; 0 if its end was ordered, or none was started, else 1."""
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
