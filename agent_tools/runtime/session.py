"""A session: one sandbox, its kernel and its work_dir, which live and end together.

A kernel that ended is replaced by a fork in the same sandbox; a sandbox that ended is replaced whole; either way the
next run starts with `Restarted`, so that nobody wonders where the variables went.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools.errors import (
    EngineError,
    KernelDied,
    KernelError,
    ProtocolViolation,
    SandboxStartError,
    SessionBusy,
    SessionClosed,
)
from agent_tools.execution import Execution, Output, Restarted, settle
from agent_tools.runtime.budget import limited
from agent_tools.runtime.channels import Channels
from agent_tools.runtime.connection import RunDir
from agent_tools.runtime.engine import Engine, Isolation, Sandbox, SandboxSpec
from agent_tools.runtime.kernel import Kernel, refuse_end
from agent_tools.runtime.link import Link
from agent_tools.runtime.owner import Owner
from agent_tools.runtime.zmtp import ZmtpSocket
from agent_tools.settings import Limits

TURN_SECONDS = 0.05  # how often a run that waits for its turn looks whether it was cancelled


@dataclass(frozen=True)
class SessionSpec:
    """What a session is made of. `work_dir` exists and is the guest's to write."""

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits


@dataclass
class _Times:
    """When a run was asked for, had its turn, and started (monotonic seconds)."""

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    started: float = 0.0


class Session:
    """Opened by a Runtime. Any thread may call any method; runs are served one at a time, in turn."""

    def __init__(self, engine: Engine, spec: SessionSpec) -> None:
        self.spec = spec
        self._engine = engine
        self._owner_pid = os.getpid()
        self._turn = threading.Lock()
        self._running_thread: int | None = None
        self._current: threading.Event | None = None
        self._closed = False
        self._sandbox: _LiveSandbox | None = None
        self._lost = ""

    def open(self) -> None:
        """Start the sandbox and its kernel now; otherwise the first run does.

        Raises:
            EngineError: the engine is not there, or cannot start the sandbox.
        """
        with self._taking_turn():
            self._ready_kernel()

    def stream(
        self, code: str, timeout: float, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, None]:
        """Run code and yield its outputs while it runs. `timeout` is in seconds; waiting for one's turn does not count.

        Setting `cancelled` and then calling `cancel` ends the run, or keeps it from ever starting.

        Raises:
            SessionClosed: the session was closed, before or during the run.
            SessionBusy: this thread is itself still reading an earlier stream.
            EngineError: a sandbox was needed and could not be started.
        """
        return self._stream(code, timeout, cancelled or threading.Event(), _Times())

    def run(self, code: str, timeout: float, cancelled: threading.Event | None = None) -> Execution:
        """Run code and return all it produced; arguments and errors as for `stream`."""
        times = _Times()
        with contextlib.closing(self._stream(code, timeout, cancelled or threading.Event(), times)) as outputs:
            settled = settle(outputs)
        return Execution(settled, duration=time.monotonic() - times.started, queued=times.turn - times.asked)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run that was given this event, wherever it is: waiting, starting or running. Variables stay."""
        cancelled.set()
        if self._current is cancelled:
            self.interrupt()

    def _stream(
        self, code: str, timeout: float, cancelled: threading.Event, times: _Times
    ) -> Generator[Output, None, None]:
        with self._taking_turn(cancelled) as has_turn:
            times.turn = times.started = time.monotonic()
            if not has_turn:
                return
            kernel, lost = self._ready_kernel()
            times.started = time.monotonic()
            if lost:
                yield Restarted(lost)
            if not cancelled.is_set():
                yield from limited(kernel.execute(code, timeout, cancelled), self.spec.limits)
            if self._closed:
                raise SessionClosed("The session was closed while its code ran.")
            if self._sandbox and self._sandbox.has_ended:
                self._sandbox.remove()  # now, and not at the next run: what it holds may be still busy

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay. Nothing happens when nothing runs."""
        if kernel := self._kernel_now():
            kernel.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Running code ends as `Died`."""
        if kernel := self._kernel_now():
            kernel.kill()
        with self._taking_turn():
            if kernel := self._kernel_now():
                kernel.end()
            self._ready_kernel()
            self._lost = ""  # asked for, so nothing to tell

    def close(self) -> None:
        """Remove the sandbox; running code ends at once. Closing again, or in a forked child, does nothing."""
        if self._closed or self._is_foreign():
            return
        self._closed = True
        if sandbox := self._sandbox:
            sandbox.remove()
        if self._turn.acquire(blocking=False):  # else whoever has the turn releases the rest when it ends
            try:
                self._release()
            finally:
                self._turn.release()

    def _release(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox:
            sandbox.close()

    def _kernel_now(self) -> Kernel | None:
        sandbox = self._sandbox
        return sandbox.kernel if sandbox and not self._is_foreign() else None

    @property
    def is_busy(self) -> bool:
        """Whether code is running now."""
        return self._turn.locked()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def sandbox(self) -> Sandbox | None:
        """The running sandbox, if there is one."""
        return self._sandbox.sandbox if self._sandbox else None

    @contextlib.contextmanager
    def _taking_turn(self, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Hold the turn; gives False, without it, if `cancelled` is set while waiting."""
        self._refuse_closed()
        if self._running_thread == threading.get_ident() and self._turn.locked():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")
        while not self._turn.acquire(timeout=TURN_SECONDS):
            if cancelled and cancelled.is_set():
                yield False
                return
        try:
            self._refuse_closed()
            self._running_thread, self._current = threading.get_ident(), cancelled
            yield True
        finally:
            self._running_thread = self._current = None
            if self._closed:
                self._release()
            self._turn.release()

    def _refuse_closed(self) -> None:
        if self._closed or self._is_foreign():
            raise SessionClosed("The session is closed.")

    def _is_foreign(self) -> bool:
        """Whether this is a forked child's copy: its sandbox belongs to the parent."""
        return os.getpid() != self._owner_pid

    def _ready_kernel(self) -> tuple[Kernel, str]:
        """The live kernel, and why an earlier one was lost, '' if none was."""
        if self._sandbox and self._sandbox.kernel and self._sandbox.kernel.is_alive():
            return self._sandbox.kernel, self._take_lost()
        if self._sandbox:
            self._lost = self._sandbox.kernel.end_reason if self._sandbox.kernel else self._lost
            kernel = self._replace_kernel(self._sandbox)
            if kernel:
                return kernel, self._take_lost()
        self._sandbox = fresh = _LiveSandbox(self._engine, self.spec)
        assert fresh.kernel is not None
        return fresh.kernel, self._take_lost()

    def _replace_kernel(self, sandbox: _LiveSandbox) -> Kernel | None:
        """A fresh kernel in the same sandbox; None, and the sandbox closed, where that is not to be had."""
        if not sandbox.has_ended:
            with contextlib.suppress(KernelError, OSError):
                return sandbox.start_kernel(self.spec.limits.restart_timeout)
        self._sandbox = None
        sandbox.close()
        return None

    def _take_lost(self) -> str:
        lost, self._lost = self._lost, ""
        return lost


class _LiveSandbox:
    """A started sandbox with all it holds on the host: directory, lifeline, kernel."""

    def __init__(self, engine: Engine, spec: SessionSpec) -> None:
        self._engine = engine
        self._spec = spec
        self._generation = 0
        self._is_removed = False
        self.kernel: Kernel | None = None
        with ExitStack() as undo:
            self._run_dir = RunDir()
            undo.callback(self._run_dir.remove)
            self._link = Link(self._run_dir.init_socket)
            undo.callback(self._link.close)
            asked = SandboxSpec(
                image=spec.image,
                run_dir=self._run_dir.mounted,
                work_dir=spec.work_dir,
                guest=engine.guest(),
                isolation=spec.isolation,
                labels=Owner.current().labels,
            )
            self.sandbox = engine.start(asked)
            undo.callback(self.remove)
            self._await_guest(asked)
            self.start_kernel(spec.limits.start_timeout)
            self._undo = undo.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether the sandbox is gone, or was found not to answer."""
        return self._link.is_closed_by_guest or bool(self.kernel and self.kernel.sandbox_ended)

    def start_kernel(self, patience: float) -> Kernel:
        """Have PID 1 fork a fresh kernel and connect to it, in at most `patience` seconds.

        Raises:
            KernelDied: it did not come up.
        """
        if self.kernel:
            self.kernel.close()
            self.kernel = None
        self._generation += 1
        deadline = time.monotonic() + patience
        key = secrets.token_hex(32)
        limit = self._spec.limits.max_message_bytes
        with ExitStack() as undo:
            listeners: list[socket.socket] = []
            channels: list[ZmtpSocket] = []
            for name in ("shell", "iopub"):
                connected, listener = self._run_dir.new_channel(name)
                listeners.append(undo.enter_context(listener))
                channels.append(ZmtpSocket(connected, "DEALER" if name == "shell" else "SUB", limit))
                undo.callback(channels[-1].close)
            descriptors = [listener.fileno() for listener in listeners]
            if not self._link.send(f"start {self._generation} {key}", descriptors):
                raise KernelDied("the sandbox takes no orders")
            self.kernel = self._connect(key.encode(), channels, deadline)
            for listener in listeners:
                listener.close()
            undo.pop_all()
        return self.kernel

    def _connect(self, key: bytes, channels: list[ZmtpSocket], deadline: float) -> Kernel:
        """Wait for the kernel's side of both channels."""
        shell, iopub = channels
        for channel in channels:
            while not select.select([channel.fileno(), self._link.fileno()], [], [], 0.5)[0] or self._hear():
                if time.monotonic() > deadline:
                    raise KernelDied("it did not become ready in time")
            try:
                channel.handshake(deadline)
            except (ProtocolViolation, OSError) as exc:
                raise KernelDied(f"it did not become ready ({exc})") from exc
        ready = Channels(key, shell, iopub, self._link)
        ready.await_welcome(deadline)
        return Kernel(ready, self._link, self._spec.limits, self._spec.isolation.memory)

    def _hear(self) -> bool:
        """Take in what PID 1 says while a kernel starts; whether it said anything."""
        words = self._link.receive()
        if words is not None:
            refuse_end(words, self._generation)
        return words is not None

    def remove(self) -> None:
        """End the sandbox at once; safe while another thread still reads from it.

        An engine that fails leaves the sandbox to end with its lifeline.
        """
        if not self._is_removed:
            self._is_removed = True
            with contextlib.suppress(EngineError):
                self._engine.remove(self.sandbox)

    def close(self) -> None:
        """Release everything, in reverse order."""
        if self.kernel:
            self.kernel.close()
        self._undo.close()

    def _await_guest(self, asked: SandboxSpec) -> None:
        deadline = time.monotonic() + self._spec.limits.start_timeout
        words = "it did not connect in time"

        def still_runs() -> bool:
            nonlocal words
            output = self._engine.last_words(self.sandbox, asked)
            words = output if output is not None else words
            return output is None

        if not self._link.accept(deadline, still_runs):
            raise SandboxStartError(f"The sandbox of image {self._spec.image} did not come up: {words.strip()}", words)
