"""A session: one sandbox, its kernel and its work_dir. succession.py has what makes way for what when one ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial

from agent_tools.checkpoint import Mark
from agent_tools.errors import EngineError, FileRejected, KernelError, SessionClosed
from agent_tools.execution import Execution, Output, Restarted, finished
from agent_tools.runtime.engine import Container, Engine
from agent_tools.runtime.files.removal import empty_folder
from agent_tools.runtime.host_calls.function import HostFunction, refuse_caller
from agent_tools.runtime.kernel.budget import limited
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.sandbox.sandbox import RunningSandbox
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox, Branch
from agent_tools.runtime.session.contents import WithContents
from agent_tools.runtime.session.course import Course, followed
from agent_tools.runtime.session.succession import StartSandbox, Succession
from agent_tools.runtime.session.turn import Turn
from agent_tools.runtime.threads.background import Do, do_now


class Session(WithContents):
    """Opened by a Runtime. Any thread may call any method; runs are served one at a time, in turn.

    `behind` does what `close` need not wait for; `start` gives a sandbox, made now or ahead.
    """

    def __init__(
        self, engine: Engine, spec: SessionSpec, behind: Do = do_now, start: StartSandbox = RunningSandbox
    ) -> None:
        self.serving = Succession(engine, spec, start)
        self._behind = behind
        self._owner_pid = os.getpid()
        self._turn = Turn()
        self._current: threading.Event | None = None
        self._closed = False

    def open(self) -> None:
        """Start the sandbox and its kernel now; otherwise the first run does.

        Raises:
            EngineError: the engine is not there, or cannot start the sandbox.
            InvalidParams: work_dir lies in that of another live sandbox, or holds one.
        """
        with self.taking_turn():
            self.serving.kernel()

    def stream(
        self, code: str, timeout: float, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Run code and yield its outputs while it runs; the generator returns the settled whole.

        `timeout` is in seconds; waiting for one's turn does not count. Setting `cancelled` and then calling `cancel`
        ends the run, or keeps it from ever starting.

        Raises:
            SessionClosed: the session was closed, before or during the run.
            SessionBusy: this thread is itself still reading an earlier stream.
            EngineError: a sandbox was needed and could not be started.
            FileRejected: work_dir is over its limits, or could not be brought into the sandbox; no code was run.
            InvalidParams: work_dir lies in that of another live sandbox, or holds one; no code was run.
        """
        return followed(partial(self._stream, code, timeout, cancelled or threading.Event()))

    def run(self, code: str, timeout: float, cancelled: threading.Event | None = None) -> Execution:
        """Run code and return all it produced; arguments and errors as for `stream`."""
        return finished(self.stream(code, timeout, cancelled))

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or command that was given this event: waiting, starting or running. Variables stay."""
        cancelled.set()
        if sandbox := self._sandbox:
            sandbox.commands.cancel(cancelled)
        if self._current is cancelled and (kernel := self._kernel_now()):
            kernel.cancel()

    def _stream(
        self, code: str, timeout: float, cancelled: threading.Event, times: Course
    ) -> Generator[Output, None, None]:
        with self.taking_turn(cancelled) as has_turn:
            times.turn = times.started = time.monotonic()
            if not has_turn:
                return
            kernel = self.serving.kernel()
            self._refuse_closed()
            times.start(self.spec)
            if lost := self.serving.take_lost():
                yield lost
            if not cancelled.is_set() and (sandbox := self._sandbox):
                with self._kept(lost), sandbox.running() as after_run:
                    yield from self.serving.told(self._outputs(kernel, code, timeout, cancelled))
                    times.connections = sandbox.take_connections()
                    yield from after_run()
                    times.replaced = sandbox.replaced
            if self._closed:
                raise SessionClosed("The session was closed while its code ran.")
            if self._sandbox and self._sandbox.has_ended:
                self._sandbox.remove()  # now, and not at the next run: what it holds may be still busy

    def _outputs(self, kernel: Kernel, code: str, timeout: float, cancelled: threading.Event) -> Iterator[Output]:
        """Yield the outputs of the code, and among them the host calls that are over."""
        calls = self.spec.host_calls
        if calls is None:
            yield from limited(kernel.execute(code, timeout, cancelled), self.spec.limits)
            return
        with calls.run(kernel) as take_over:
            yield from limited(kernel.execute(code, timeout, cancelled, beside=take_over), self.spec.limits)
        yield from take_over()

    @contextlib.contextmanager
    def _kept(self, lost: Restarted | None) -> Iterator[None]:
        """Around a run: one that is refused told nobody of a lost kernel, so the next one does."""
        try:
            yield
        except FileRejected:
            self.serving.lost = lost
            raise

    def live(self) -> AnySandbox:
        """Return the sandbox that runs, also while it runs code, for its commands and files; started if there is none.

        Errors as for `stream`.
        """
        self._refuse_closed()
        if (sandbox := self._sandbox) and sandbox.is_usable:
            return sandbox
        with self.between_runs() as sandbox:
            return sandbox

    @contextlib.contextmanager
    def between_runs(self) -> Iterator[AnySandbox]:
        """Hold the turn, with a kernel that waits for code. Errors as for `stream`."""
        with self.taking_turn():
            self.serving.kernel()
            assert self._sandbox is not None
            with self._sandbox.use():
                yield self._sandbox

    def add_functions(self, functions: Mapping[str, HostFunction], prelude: str, *, others: bool = True) -> None:
        """Serve further host functions, which `prelude` defines for the code, now and in every later kernel.

        Without `others`, those before are served no more; their names stay where they were defined.
        """
        with self.taking_turn():
            assert self.spec.host_calls is not None
            self.spec.host_calls.add(functions, others=others)
            self.serving.spec = replace(self.spec, prelude=prelude)
            if self._sandbox:
                self._sandbox.keep_prelude(prelude)
                self._sandbox.define(prelude, self.spec.limits.timeout)

    def reset(self) -> None:
        """End the sandbox, with its commands and all it held, and empty work_dir; the next use starts another one."""
        self._condemn("it was reset")
        with self.taking_turn():
            if sandbox := self.serving.take_sandbox():
                sandbox.close()
            empty_folder(self.spec.work_dir)

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay. Nothing happens when nothing runs."""
        if kernel := self._kernel_now():
            kernel.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Running code ends as `Died`."""
        self._condemn("it was restarted")
        with self.taking_turn():
            self.serving.is_condemned = True  # again: another's turn may have come first, with a fresh kernel
            self.serving.kernel()

    def _condemn(self, reason: str) -> None:
        """End the kernel; a fresh one comes with the next use, also if the caller is interrupted before his turn."""
        refuse_caller(self.spec.host_calls)
        self._turn.refuse_holder()
        if kernel := self._kernel_now():
            self.serving.is_condemned = True
            kernel.kill(reason)

    def undo(self) -> None:
        """Take the variables back to where they were before the last run; files stay as they are.

        Raises:
            CheckpointMissing: there was no run, or no checkpoint of before it; the variables are as they were.
            KernelDied: the checkpoint did not go on in time, or at all.
        """
        with self.taking_turn():
            self.serving.undo()

    def checkpoint(self) -> Mark:
        """Keep the variables as they are now for `rollback`, until the kernel is replaced by a fresh one.

        Raises:
            CheckpointMissing: none can be taken now; the message says why.
        """
        with self.taking_turn():
            return self.serving.mark()

    def rollback(self, mark: Mark) -> None:
        """Take the variables back, or forth, to where they were at a mark, as often as you like; files stay.

        Raises:
            CheckpointMissing: it is kept no more; the variables are as they were.
            KernelDied: the checkpoint did not go on in time, or at all.
        """
        with self.taking_turn():
            self.serving.rollback(mark)

    def branch(self) -> Branch:
        """Start a kernel beside this one, from the state of now. Whoever takes it closes it.

        Raises:
            CheckpointMissing: the kernel cannot be copied now; the message says why.
            KernelDied: the branch did not come up.
            InvalidParams: the sandbox has `max_branches` already.
        """
        with self.taking_turn():
            return self.serving.branch()

    def close(self) -> None:
        """End all code and remove the sandbox. Closing again, or in a forked child, does nothing."""
        if self._closed or self._is_foreign():
            return
        self._closed = True
        if self._turn.take_now():
            try:
                if self._sandbox:
                    self._sandbox.end(self._behind)
                self._release()
            finally:
                self._turn.give_up()
        elif sandbox := self._sandbox:  # whoever has the turn releases the rest when it ends
            sandbox.remove()

    def _release(self) -> None:
        if sandbox := self.serving.take_sandbox():
            sandbox.close()
        if self.spec.host_calls:
            self.spec.host_calls.close()

    @property
    def spec(self) -> SessionSpec:
        """Its makings."""
        return self.serving.spec

    @property
    def _sandbox(self) -> AnySandbox | None:
        return self.serving.sandbox

    def _kernel_now(self) -> Kernel | None:
        return sandbox.kernel if (sandbox := self._sandbox) and not self._is_foreign() else None

    @property
    def is_alive(self) -> bool:
        """True while its sandbox runs."""
        return bool((sandbox := self._sandbox) and not self._closed and sandbox.is_usable)

    @property
    def is_busy(self) -> bool:
        """True while code is running."""
        return self._turn.is_taken

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def sandbox(self) -> Container | None:
        """The running sandbox, if there is one."""
        return self._sandbox.sandbox if self._sandbox else None

    @contextlib.contextmanager
    def taking_turn(self, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Hold the turn; gives False, without it, if `cancelled` is set while waiting."""
        self._refuse_closed()
        refuse_caller(self.spec.host_calls)
        if not self._turn.take(cancelled):
            yield False
            return
        try:
            self._refuse_closed()
            self._current = cancelled
            yield True
        except (EngineError, KernelError) as exc:
            if self._closed:  # under its hands
                raise SessionClosed("The session was closed meanwhile.") from exc
            raise
        finally:
            self._current = None
            if self._closed:
                self._release()
            self._turn.give_up()

    def _refuse_closed(self) -> None:
        if self._closed or self._is_foreign():
            raise SessionClosed("The session is closed.")

    def _is_foreign(self) -> bool:
        """Return whether this is a forked child's copy: its sandbox belongs to the parent."""
        return os.getpid() != self._owner_pid
