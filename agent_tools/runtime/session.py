"""A session: one sandbox, its kernel and its work_dir, which live and end together.

A kernel that ended is replaced by a fork in the same sandbox; a sandbox that ended is replaced whole; either way the
next run starts with `Restarted`, so that nobody wonders where the variables went.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools.errors import KernelDied, SandboxStartError, SessionBusy, SessionClosed
from agent_tools.execution import Execution, Output, Restarted, settle
from agent_tools.runtime.budget import limited
from agent_tools.runtime.channels import Channels
from agent_tools.runtime.connection import RunDir
from agent_tools.runtime.engine import Engine, Isolation, Sandbox, SandboxSpec
from agent_tools.runtime.kernel import Kernel, require_ready
from agent_tools.runtime.link import Link
from agent_tools.runtime.owner import Owner
from agent_tools.settings import Limits


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

    def stream(self, code: str, timeout: float) -> Generator[Output, None, None]:
        """Run code and yield its outputs while it runs. `timeout` is in seconds; waiting for one's turn does not count.

        Raises:
            SessionClosed: the session was closed, before or during the run.
            SessionBusy: this thread is itself still reading an earlier stream.
            EngineError: a sandbox was needed and could not be started.
        """
        return self._stream(code, timeout, _Times())

    def _stream(self, code: str, timeout: float, times: _Times) -> Generator[Output, None, None]:
        with self._taking_turn():
            times.turn = time.monotonic()
            kernel, lost = self._ready_kernel()
            times.started = time.monotonic()
            if lost:
                yield Restarted(lost)
            yield from limited(kernel.execute(code, timeout), self.spec.limits)
            if self._closed:
                raise SessionClosed("The session was closed while its code ran.")

    def run(self, code: str, timeout: float) -> Execution:
        """Run code and return all it produced."""
        times = _Times()
        with contextlib.closing(self._stream(code, timeout, times)) as outputs:
            settled = settle(outputs)
        return Execution(settled, duration=time.monotonic() - times.started, queued=times.turn - times.asked)

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay. Nothing happens when nothing runs."""
        if self._sandbox and self._sandbox.kernel and not self._is_foreign():
            self._sandbox.kernel.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Running code ends as `Died`."""
        if self._sandbox and self._sandbox.kernel and not self._is_foreign():
            self._sandbox.kernel.kill()
        with self._taking_turn():
            if self._sandbox and self._sandbox.kernel:
                self._sandbox.kernel.end()
            self._ready_kernel()

    def close(self) -> None:
        """Remove the sandbox; running code ends at once. Closing again, or in a forked child, does nothing."""
        if self._closed or self._is_foreign():
            return
        self._closed = True
        sandbox = self._sandbox
        if sandbox:
            sandbox.remove()
        if self._turn.acquire(timeout=5):  # whoever was running has seen the end of the sandbox by now
            try:
                if self._sandbox:
                    self._sandbox.close()
                self._sandbox = None
            finally:
                self._turn.release()

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
    def _taking_turn(self) -> Iterator[None]:
        if self._running_thread == threading.get_ident() and self._turn.locked():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")
        with self._turn:
            if self._closed or self._is_foreign():
                raise SessionClosed("The session is closed.")
            self._running_thread = threading.get_ident()
            try:
                yield
            finally:
                self._running_thread = None

    def _is_foreign(self) -> bool:
        """Whether this is a forked child's copy: its sandbox belongs to the parent."""
        return os.getpid() != self._owner_pid

    def _ready_kernel(self) -> tuple[Kernel, str]:
        """The live kernel, and why an earlier one was lost, '' if none was."""
        if self._sandbox and self._sandbox.kernel and self._sandbox.kernel.is_alive():
            lost, self._lost = self._lost, ""
            return self._sandbox.kernel, lost
        if self._sandbox:
            self._lost = self._sandbox.kernel.end_reason if self._sandbox.kernel else self._lost
            if not self._sandbox.has_ended:
                with contextlib.suppress(KernelDied):
                    return self._sandbox.start_kernel(), self._take_lost()
            self._sandbox.close()
        self._sandbox = _LiveSandbox(self._engine, self.spec)
        if self._closed:
            self._sandbox.close()
            raise SessionClosed("The session was closed while its sandbox started.")
        assert self._sandbox.kernel is not None
        return self._sandbox.kernel, self._take_lost()

    def _take_lost(self) -> str:
        lost, self._lost = self._lost, ""
        return lost


class _LiveSandbox:
    """A started sandbox with all it holds on the host: directory, lifeline, kernel."""

    def __init__(self, engine: Engine, spec: SessionSpec) -> None:
        self._engine = engine
        self._spec = spec
        self._generation = 0
        self.kernel: Kernel | None = None
        with ExitStack() as undo:
            guest = engine.guest()
            self._run_dir = RunDir(guest, engine.guest_run_dir)
            undo.callback(self._run_dir.remove)
            self._link = Link(self._run_dir.init_socket)
            undo.callback(self._link.close)
            self._connection = self._run_dir.prepare(1)
            asked = SandboxSpec(
                image=spec.image,
                run_dir=self._run_dir.path,
                work_dir=spec.work_dir,
                guest=guest,
                isolation=spec.isolation,
                labels=Owner.current().labels,
            )
            self.sandbox = engine.start(asked)
            undo.callback(engine.remove, self.sandbox)
            self._await_guest(asked)
            self._connect_kernel(1)
            self._undo = undo.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether the sandbox is gone, or was found not to answer."""
        return self._link.is_closed_by_guest or bool(self.kernel and self.kernel.sandbox_ended)

    def start_kernel(self) -> Kernel:
        """Have PID 1 fork a fresh kernel.

        Raises:
            KernelDied: it did not come up.
        """
        if self.kernel:
            self.kernel.close()
            self.kernel = None
        self._generation += 1
        generation = self._generation
        self._connection = self._run_dir.prepare(generation)
        self._link.send(f"start {generation}")
        self._connect_kernel(generation)
        assert self.kernel is not None
        return self.kernel

    def remove(self) -> None:
        """End the sandbox at once; safe while another thread still reads from it."""
        with contextlib.suppress(Exception):
            self._engine.remove(self.sandbox)

    def close(self) -> None:
        """Release everything, in reverse order."""
        if self.kernel:
            self.kernel.close()
        with contextlib.suppress(Exception):
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

    def _connect_kernel(self, generation: int) -> None:
        self._generation = generation
        deadline = time.monotonic() + self._spec.limits.start_timeout
        while not require_ready(self._next_words(deadline), generation):
            pass
        self._run_dir.check(generation)
        channels = Channels(self._connection, self._link, self._spec.limits)
        try:
            channels.await_welcome(deadline)
        except BaseException:
            channels.close()
            raise
        self._run_dir.lock(generation)
        self.kernel = Kernel(channels, self._link, self._spec.limits, self._spec.isolation.memory)

    def _next_words(self, deadline: float) -> list[str]:
        while (words := self._link.receive()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise KernelDied("it did not become ready in time")
            select.select([self._link.fileno()], [], [], left)
        return words
