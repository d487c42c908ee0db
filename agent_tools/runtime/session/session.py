"""A session: one sandbox, its kernel and its work_dir. succession.py has what makes way for what when one ends."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from agent_tools.engines.engine import Container, Engine
from agent_tools.errors import EngineError, FileRejected, KernelError, SessionBusy, SessionClosed
from agent_tools.machine.background import Do, do_now
from agent_tools.machine.removal import empty_folder
from agent_tools.results.execution import Changes, Execution, NetworkConnection, Output, Restarted, finished
from agent_tools.results.variables import Mark, VariablesReport
from agent_tools.runtime.commands.commands import Commands
from agent_tools.runtime.files.archives import Archives, Pieces
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.files.workspace import watch_changes
from agent_tools.runtime.host_calls.function import HostFunction, refuse_caller
from agent_tools.runtime.kernel.budget import Settling, limited
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.run_lock import caller
from agent_tools.runtime.sandbox.sandbox import RunningSandbox
from agent_tools.runtime.sandbox.spec import SessionSpec
from agent_tools.runtime.session import state
from agent_tools.runtime.session.branch import AnySandbox, Branch
from agent_tools.runtime.session.kernel_recovery import StartSandbox, Succession


class Session:
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

    @property
    def files(self) -> GuestFiles:
        """The files of its sandbox."""
        return self.live().files

    @property
    def commands(self) -> Commands:
        """The commands of its sandbox."""
        return self.live().commands

    def define(self, source: str) -> None:
        """Run code that leaves no trace but what it defines.

        Raises:
            PreludeError: it failed.
        """
        with self.between_runs() as sandbox:
            sandbox.define(source, self.spec.limits.timeout)

    def save(self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool) -> VariablesReport:
        """Write an archive of a folder, at most so many bytes, piece by piece; return what became of the variables.

        Raises:
            OSError: the folder cannot be read; EFBIG beyond `most` bytes.
            KernelError: the kernel could not begin to save variables.
        """
        if variables:
            return state.save(self, path, most, write)
        for piece in Archives(self.files, self.spec.limits).save(path, most):
            write(piece)
        return VariablesReport()

    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport:
        """Unpack an archive into a folder, and set its variables; return what became of these.

        Raises:
            OSError: the folder cannot be written, or the archive is none.
        """
        if variables:
            return state.load(self, path, archive)
        Archives(self.files, self.spec.limits).load(path, archive)
        return VariablesReport()

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


# The course of one run of a session, in moments.


@dataclass
class Course:
    """The moments at which a run was asked for, had its turn, and started (monotonic seconds), and what it did.

    `replaced` are the names of files of a remote work_dir that were replaced here by what the run made of them.
    """

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    started: float = 0.0
    connections: tuple[tuple[NetworkConnection, ...], int] = ((), 0)  # and how many were left out
    watched: Callable[[Collection[str]], Changes] = field(default=lambda _: Changes())
    replaced: Collection[str] = ()

    def start(self, spec: SessionSpec) -> None:
        """Note that the run starts, and which files it changes from now on."""
        self.started = time.monotonic()
        self.watched = watch_changes(spec.work_dir, spec.limits)

    def execution(self, outputs: Sequence[Output]) -> Execution:
        """Return the whole of a run that is over now."""
        connections, left_out = self.connections
        return Execution(
            tuple(outputs),
            changed=self.watched(self.replaced),
            duration=time.monotonic() - self.started,
            queued=self.turn - self.asked,
            connections=connections,
            connections_left_out=left_out,
        )


def followed(stream: Callable[[Course], Generator[Output, None, None]]) -> Generator[Output, None, Execution]:
    """Yield the outputs of a run, which notes its times in the course that it is given; return the settled whole."""
    times, arrived = Course(), Settling()
    with closing(stream(times)) as outputs:
        for output in outputs:
            arrived.add(output)
            yield output
    return times.execution(arrived.outputs)


# The turn of a session: what it does, it does for one caller at a time.


LOOK_SECONDS = 0.05  # how often one that waits looks whether it was cancelled


class Turn:
    """Taken by one caller, a task or a thread, and given up by it. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object = None

    @property
    def is_taken(self) -> bool:
        """True while somebody has it."""
        return self._lock.locked()

    def take(self, cancelled: threading.Event | None) -> bool:
        """Wait for it; False, without it, once `cancelled` is set.

        Raises:
            SessionBusy: this caller has it.
        """
        self.refuse_holder()
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            if cancelled and cancelled.is_set():
                return False
        self._holder = caller()
        return True

    def refuse_holder(self) -> None:
        """Refuse the one who has it.

        Raises:
            SessionBusy: this caller has it.
        """
        if self._lock.locked() and self._holder == caller():
            raise SessionBusy("This thread is still reading an earlier stream of the same session; finish or close it.")

    def take_now(self) -> bool:
        """Take it if nobody has it; return whether it is taken."""
        return self._lock.acquire(blocking=False)

    def give_up(self) -> None:
        """Let another one have it."""
        self._holder = None
        self._lock.release()
