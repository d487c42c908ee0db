"""A session: one work_dir with its current sandbox and kernel. kernel_recovery.py replaces them when they end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

from agent_tools.engines.engine import Engine, EngineContainer
from agent_tools.errors import EngineError, FileRejected, InvalidParams, KernelError, SandboxGone, SessionClosed
from agent_tools.machine.background import Do, do_now
from agent_tools.machine.removal import empty_folder
from agent_tools.results.connections import NetworkConnection
from agent_tools.results.execution import Cause, Changes, Died, Error, Execution, Output, Restarted, TimedOut, finished
from agent_tools.runtime.commands.commands import Commands
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.files.quota import Quota
from agent_tools.runtime.files.workspace import watch_changes
from agent_tools.runtime.host_calls.function import HostFunction
from agent_tools.runtime.kernel.kernel import Beside, Kernel
from agent_tools.runtime.kernel.output_limits import limited
from agent_tools.runtime.kernel.settling import Settling
from agent_tools.runtime.run_lock import RunLock
from agent_tools.runtime.sandbox.sandbox import LiveSandbox
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.branch import AnySandbox, KernelBranch
from agent_tools.runtime.session.kernel_recovery import KernelRecovery, StartSandbox
from agent_tools.runtime.session.session_variables import SessionVariables

NOT_RUN = Error("KeyboardInterrupt", "the code was cancelled before it ran", "")


class Session:
    """Opened by a Runtime. Any thread may call any method; callers run code one at a time.

    `Sandbox` documents the methods and their errors. `behind` does work that nothing need wait for; `start` returns
    a sandbox, made now or ahead.
    """

    def __init__(
        self, engine: Engine, spec: SessionSpec, behind: Do = do_now, start: StartSandbox = LiveSandbox
    ) -> None:
        self.recovery = KernelRecovery(engine, spec, start)
        self.variables = SessionVariables(self.recovery, self.between_runs, lambda: self.files)
        self.behind = behind
        self._owner_pid = os.getpid()
        self._lock = RunLock()
        self._current: threading.Event | None = None
        self._ends_next = ""  # why the kernel that is being started must end before it runs code; '' if it need not
        self._closed = False

    def open(self) -> None:
        """Start the sandbox and its kernel now; otherwise the first run does."""
        with self.locked():
            self.recovery.kernel()

    def stream(
        self, code: str, timeout: float, cancelled: threading.Event | None = None, *, definitions: str = ""
    ) -> Generator[Output, None, Execution]:
        """Run code and yield its outputs while it runs; the generator returns the settled whole.

        `timeout` is in seconds; waiting for other callers does not count. Set `cancelled` and then call `cancel` to end
        the run, or to keep it from starting. `definitions` is code of the host that sets variables first.
        """
        record, cancelled, ending = RunRecord(), cancelled or threading.Event(), None
        with self.locked(cancelled) as has_lock:
            record.note_lock()
            if not has_lock:
                yield record.add(NOT_RUN)
                return record.execution()
            kernel = self._kernel_for_code()
            record.start(self.spec)
            if lost := self.recovery.take_lost():
                yield record.add(lost)
            if cancelled.is_set():
                yield record.add(NOT_RUN)
            elif sandbox := self._sandbox:
                ends = time.monotonic() + timeout
                with self._reporting_again(lost), sandbox.root.running() as after_run:
                    with (  # the run is over before the lock is released, also where the reader leaves early
                        self._host_calls(kernel) as finished_calls,
                        closing(_executed(kernel, definitions, code, timeout, cancelled, finished_calls)) as unlimited,
                        closing(limited(unlimited, self.spec.limits)) as outputs,
                    ):
                        for output in outputs:
                            if isinstance(output, Died) or (isinstance(output, TimedOut) and not output.state_kept):
                                ending = output
                            else:
                                yield record.add(output)
                    with sandbox.root.after_code():
                        for output in finished_calls():
                            yield record.add(output)
                        if ending:
                            yield record.add(self.recovery.after(ending, ends - time.monotonic()))
                        record.connections = sandbox.root.take_connections()
                        for output in after_run():
                            yield record.add(output)
                        record.replaced = sandbox.root.replaced
            self._look_after_run()
            return record.execution()

    def _kernel_for_code(self) -> Kernel:
        """Return a live kernel; one whose end was ordered while it was being started will report that end."""
        kernel = self.recovery.kernel()
        self._refuse_closed()
        if self._ends_next:
            self.recovery.is_condemned = True
            kernel.kill(self._ends_next)
            self._ends_next = ""
        return kernel

    def _look_after_run(self) -> None:
        if self._closed:
            failure = SessionClosed("The session was closed while its code ran.")
            failure.has_begun = True
            raise failure
        if self._sandbox and self._sandbox.has_ended:
            self._sandbox.remove()  # now, and not at the next run: its resources may still be busy

    def run(self, code: str, timeout: float, cancelled: threading.Event | None = None) -> Execution:
        """Run code and return everything it produced; arguments as for `stream`."""
        return finished(self.stream(code, timeout, cancelled))

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or command with this event: waiting, starting or running. Variables stay."""
        cancelled.set()
        if sandbox := self._sandbox:
            sandbox.root.commands.cancel(cancelled)
        if self._current is cancelled and (kernel := self._kernel_now()):
            kernel.cancel(cancelled)

    def _host_calls(self, kernel: Kernel) -> AbstractContextManager[Callable[[], Iterable[Output]]]:
        """Serve host calls around a run; yields a function that returns those finished since it was last called."""
        calls = self.spec.host_calls
        return calls.run(kernel) if calls else nullcontext(tuple)

    @contextlib.contextmanager
    def _reporting_again(self, lost: Restarted | None) -> Iterator[None]:
        """If the run is refused, report the lost kernel with the next run."""
        try:
            yield
        except FileRejected:
            self.recovery.lost = lost
            raise

    @contextlib.contextmanager
    def between_runs(self) -> Iterator[AnySandbox]:
        """Lock the session, with a kernel that waits for code."""
        with self.locked():
            self.recovery.kernel()
            assert self._sandbox is not None
            with self._sandbox.use():
                yield self._sandbox

    @property
    def files(self) -> GuestFiles:
        """The files of its sandbox, which is started if there is none."""
        return self.live().root.files

    @property
    def commands(self) -> Commands:
        """The commands of its sandbox, which is started if there is none."""
        return self.live().root.commands

    def live(self) -> AnySandbox:
        """Return the sandbox for its files and commands, also while it runs code."""
        self._refuse_closed()
        if (sandbox := self._sandbox) and sandbox.is_usable:
            return sandbox
        with self.between_runs() as sandbox:
            return sandbox

    def add_functions(self, functions: Mapping[str, HostFunction], prelude: str, *, others: bool = True) -> None:
        """Serve further host functions, which `prelude` defines for the code, now and in every later kernel.

        Without `others`, earlier functions are served no more; their names stay defined.
        """
        with self.locked():
            if self.spec.host_calls is None:
                raise InvalidParams("There are no host functions here: give them where this is made (hostcalls=...).")
            self.spec.host_calls.add(functions, others=others)
            self.recovery.spec = replace(self.spec, prelude=prelude)
            if self._sandbox:
                self._sandbox.keep_prelude(prelude)
                self.recovery.kernel()  # one that has ended is replaced
                self._sandbox.define(prelude, self.spec.limits.timeout)

    def reset(self) -> None:
        """Remove the sandbox with its commands, and empty work_dir; the next use starts another sandbox."""
        with self._ended("it was reset"):
            if sandbox := self.recovery.take_sandbox():
                sandbox.close()
            empty_folder(self.spec.work_dir)

    def interrupt(self) -> None:
        """Interrupt the running code, as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        if kernel := self._kernel_now():
            kernel.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Running code ends as `Died`.

        A kernel that runs nothing first finishes as a program does.
        """
        self._refuse_host_function()
        if self._kernel_now() and self._lock.acquire_now():
            try:
                self.recovery.is_condemned = True  # first: the next use must not meet what has finished
                self._finish()
            finally:
                self._unlock()
        with self._ended("it was restarted"):
            self.recovery.is_condemned = True  # again: another caller may have run first, with a fresh kernel
            self.recovery.kernel()

    @contextlib.contextmanager
    def _ended(self, reason: str) -> Iterator[None]:
        """End the kernel, also one that is being started, and lock the session.

        The next use starts a new kernel, even if this call is interrupted while waiting.
        """
        self._refuse_host_function()
        self._lock.refuse_owner()
        self._ends_next = reason if self._lock.is_locked else ""  # before looking, or a kernel could slip through
        try:
            if (kernel := self._kernel_now()) and not kernel.end_reason:
                self._ends_next = ""
                self.recovery.is_condemned = True
                kernel.kill(reason)
            with self.locked():
                self._ends_next = ""
                yield
        finally:
            self._ends_next = ""

    def close(self) -> None:
        """End all code and remove the sandbox. Closing again, or in a forked child, does nothing.

        A kernel that runs nothing first finishes as a program does.
        """
        if self._closed or self._is_foreign():
            return
        self._closed = True
        if self._lock.acquire_now():
            try:
                self._finish()
                if self._sandbox:
                    self._sandbox.end(self.behind)
            finally:
                self._unlock()
        elif sandbox := self._sandbox:  # the caller that has the lock releases the rest
            sandbox.remove()
            if self._lock.acquire_left():
                self._unlock()

    def _unlock(self) -> None:
        """Release the lock; in a closed session, first release everything else."""
        was_closed = self._closed
        try:
            if was_closed:
                self._release()
        finally:
            self._lock.release()
        if self._closed and not was_closed and self._lock.acquire_now():  # `close` has just found it locked
            self._unlock()

    def _release(self) -> None:
        if sandbox := self.recovery.take_sandbox():
            sandbox.close()
        if self.spec.host_calls:
            self.spec.host_calls.close()

    @property
    def spec(self) -> SessionSpec:
        """Everything needed to start its next sandbox."""
        return self.recovery.spec

    @property
    def _sandbox(self) -> AnySandbox | None:
        return self.recovery.sandbox

    def _finish(self) -> None:
        if self._sandbox:
            self._sandbox.finish()

    def _kernel_now(self) -> Kernel | None:
        return sandbox.kernel if (sandbox := self._sandbox) and not self._is_foreign() else None

    @property
    def is_alive(self) -> bool:
        """True while its sandbox runs."""
        return bool((sandbox := self._sandbox) and not self._closed and sandbox.is_usable)

    @property
    def is_busy(self) -> bool:
        """True while code is running."""
        return self._lock.is_locked

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def container(self) -> EngineContainer | None:
        """The running container, if there is one."""
        return self._sandbox.root.container if self._sandbox else None

    @contextlib.contextmanager
    def locked(self, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Lock the session; yields False, without the lock, if `cancelled` is set while waiting."""
        self._refuse_closed()
        self._refuse_host_function()
        if not self._lock.acquire(cancelled):
            yield False
            return
        try:
            self._refuse_closed()
            self._current = cancelled
            yield True
        except (EngineError, KernelError) as exc:
            if self._closed:  # while this call was using it
                raise SessionClosed("The session was closed meanwhile.") from exc
            raise
        finally:
            self._current = None
            self._unlock()

    def _refuse_closed(self) -> None:
        if self._closed or self._is_foreign():
            raise SessionClosed("The session is closed.")

    def _refuse_host_function(self) -> None:
        if calls := self.spec.host_calls:
            calls.refuse_caller()

    def _is_foreign(self) -> bool:
        """Return whether this is a forked child's copy: its sandbox belongs to the parent."""
        return os.getpid() != self._owner_pid


def _executed(
    kernel: Kernel, definitions: str, code: str, timeout: float, cancelled: threading.Event, beside: Beside
) -> Generator[Output, None, None]:
    """Run the definitions, and then the code unless they fail."""
    if definitions:
        with closing(kernel.execute(definitions, timeout, cancelled, kind="definition")) as outputs:
            for output in outputs:
                if isinstance(output, Error):  # without the traceback, which has the host's code
                    yield Error(output.name, f"the variables could not be set: {output.value}", "")
                    return
                yield output
                if isinstance(output, (TimedOut, Died)):
                    return
    yield from kernel.execute(code, timeout, cancelled, beside=beside)


class RunRecord:
    """One run: its outputs, settled as they come, its times (monotonic seconds), and what it changed.

    Attributes:
        connections: the connections of its code, and how many were left out.
        replaced: files that were replaced here by copies of files that the run changed elsewhere.
    """

    def __init__(self) -> None:
        self.connections: tuple[tuple[NetworkConnection, ...], int] = ((), 0)
        self.replaced: Collection[str] = ()
        self._settled = Settling()
        self._asked = self._locked = self._started = time.monotonic()
        self._changes: Callable[[Collection[str]], Changes] = lambda _: Changes()

    def note_lock(self) -> None:
        """Note that the wait for other callers is over."""
        self._locked = self._started = time.monotonic()

    def start(self, spec: SessionSpec) -> None:
        """Note that the run starts, and watch for the files that it changes."""
        self._started = time.monotonic()
        self._changes = watch_changes(spec.work_dir, spec.limits)

    def add(self, output: Output) -> Output:
        """Note an output, and return it."""
        self._settled.add(output)
        return output

    def execution(self) -> Execution:
        """Return the whole run, which is over."""
        connections, left_out = self.connections
        return Execution(
            self._settled.outputs,
            changed=self._changes(self.replaced),
            duration=time.monotonic() - self._started,
            queued=self._locked - self._asked,
            connections=connections,
            connections_left_out=left_out,
        )


class BranchSession(Session):
    """The session of a branch: one kernel of a sandbox that another session owns. A branch is not replaced."""

    def __init__(self, parent: Session, branch: KernelBranch) -> None:
        super().__init__(parent.recovery.engine, branch.spec, parent.behind, _BranchFactory(branch))
        self._branch = branch
        self.open()
        branch.siblings.add(self)

    def reset(self) -> None:
        """Raise InvalidParams: the files belong to the whole sandbox."""
        raise InvalidParams("A fork cannot be reset: its files are the sandbox's. Reset the sandbox, or restart this.")

    def kill(self, reason: str, cause: Cause) -> None:
        """End its code, and the code of its branches."""
        if kernel := self._branch.kernel:
            kernel.kill(reason, cause)
        self._branch.branches.kill(reason, cause)

    def close(self) -> None:
        """End all code of the branch, and of those made of it. Closing again, or in a forked child, does nothing."""
        self._branch.siblings.remove(self)
        super().close()


def fork(session: Session) -> BranchSession:
    """Return a new session that continues from the present state of another one. Errors as for `Sandbox.fork`."""
    return _opened(session, session.variables.branch())


def fresh_session(session: Session) -> BranchSession:
    """Return a new session in the same sandbox, also while that runs code. Errors as for `Sandbox.fresh_kernel`."""
    sandbox = session.live()
    try:
        with sandbox.use():
            return _opened(session, KernelBranch(sandbox, session.spec, is_fresh=True))
    except (EngineError, KernelError) as exc:
        if session.is_closed:
            raise SessionClosed("The session was closed meanwhile.") from exc
        raise


def _opened(session: Session, branch: KernelBranch) -> BranchSession:
    try:
        return BranchSession(session, branch)
    except BaseException:
        branch.close()
        raise


class _BranchFactory:
    """Returns the branch at the first start, and raises at every later one."""

    def __init__(self, branch: KernelBranch) -> None:
        self._branch: KernelBranch | None = branch

    def __call__(self, _engine: Engine, _spec: SessionSpec, _quota: Quota) -> AnySandbox:
        branch, self._branch = self._branch, None
        if branch is None:
            raise SandboxGone("The fork has ended, with its variables. Fork again; the files are in the sandbox.")
        return branch
