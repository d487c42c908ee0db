"""A kernel for Jupyter's clients: one sandbox, and a new kernel in it after each restart.

Each kernel, from its start to its end, is a thread between five sockets and the sandbox.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from agent_tools.errors import AgentToolsError
from agent_tools.jupyter.connection import ConnectionInfo
from agent_tools.jupyter.dialogue import Dialogue
from agent_tools.jupyter.sockets import KernelSockets
from agent_tools.jupyter.wire import BadRequest, SignedFrames
from agent_tools.runtime.session.raw_kernel import RawKernel, raw_kernel
from agent_tools.runtime.session.session import Session
from agent_tools.sandbox.audit import AuditLog
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Options

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

PRELUDE = "get_ipython().serve_notebook(is_plain={})"
DIED, ENDED = 1, 0  # exit codes
log = logging.getLogger("agent_tools.jupyter")


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


class KernelLife:
    """A kernel that is starting, running or ended. Any thread may call any method.

    Raises:
        AgentToolsError: the kernel could not be started.
        OSError: a socket could not be bound.
    """

    def __init__(self, session: Session, info: ConnectionInfo, audit: AuditLog, *, is_plain: bool = False) -> None:
        self._session = session
        self._audit = audit
        self._is_plain = is_plain
        self._info = info
        self._bell, self._ring = socket.socketpair()
        self._started: Future[RawKernel] = Future()
        self.exit_code: int | None = None
        """None while it runs; 0 if its end was ordered, else 1."""
        self._thread = threading.Thread(target=self._run, name="jupyter kernel", daemon=True)
        self._thread.start()
        self._kernel = self._started.result()

    def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C would."""
        self._kernel.interrupt()

    def stop(self) -> None:
        """End the kernel; the sandbox stays with its session."""
        with contextlib.suppress(OSError):
            self._ring.send(b"\0")
        self._thread.join()

    def _run(self) -> None:
        try:
            with raw_kernel(self._session) as kernel, KernelSockets(self._info) as sockets:
                kernel.start(PRELUDE.format(self._is_plain))
                try:
                    self.exit_code = self._serve(kernel, sockets)
                finally:
                    kernel.stop()
        except Exception as exc:
            self.exit_code = DIED
            if self._started.done():
                log.error("A kernel ended: %s", exc, exc_info=not isinstance(exc, AgentToolsError))
            else:
                self._started.set_exception(exc)
        finally:
            self.exit_code = DIED if self.exit_code is None else self.exit_code
            self._bell.close()
            self._ring.close()

    def _serve(self, kernel: RawKernel, sockets: KernelSockets) -> int:
        wire = SignedFrames(self._info.key, self._info.scheme)
        with contextlib.closing(Dialogue(wire, sockets, kernel, self._audit, is_plain=self._is_plain)) as dialogue:
            self._started.set_result(kernel)
            return self._pass_on(kernel, sockets, wire, dialogue)

    def _pass_on(self, kernel: RawKernel, sockets: KernelSockets, wire: SignedFrames, dialogue: Dialogue) -> int:
        while not dialogue.is_over:
            with_shell = dialogue.takes_requests
            ready = sockets.await_input([*kernel.filenos(), self._bell.fileno()], with_shell=with_shell)
            if self._bell.fileno() in ready:
                break
            self._take(sockets, wire, dialogue, with_shell=with_shell)
            for arrived in kernel.receive():
                dialogue.hear(arrived)
            if kernel.has_ended:
                died = kernel.succeed()
                dialogue.tell_death(died)
                if not died.variables.kept:
                    return DIED
        return ENDED

    def _take(self, sockets: KernelSockets, wire: SignedFrames, dialogue: Dialogue, *, with_shell: bool) -> None:
        for channel, frames in sockets.receive(with_shell=with_shell):
            if channel == "iopub":
                if frames[0][:1] == b"\1":
                    dialogue.welcome(frames[0][1:])
                continue
            try:
                dialogue.handle(wire.read(channel, frames))
            except BadRequest as exc:
                log.warning("A client sent %s.", exc)
            if channel == "shell" and not dialogue.takes_requests:
                break  # the others wait at their clients
