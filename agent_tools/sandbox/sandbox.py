"""The one public seam: a container in which code and commands run and files lie. It knows of no framework."""

from __future__ import annotations

import contextlib
import io
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, overload

from agent_tools.code_reader import Code, read_code
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.errors import InvalidParams, UnclearCode
from agent_tools.results.command import CommandResult, OnOutput
from agent_tools.results.execution import Error, Execution, FileInfo, Notice, Output, StagedFile, finished
from agent_tools.results.notebook import History, notebook_of
from agent_tools.results.variables import RestorePoint, SavedState, VariablesReport
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.files.archives import NO_FILES, opened
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.session.raw_kernel import local
from agent_tools.runtime.session.session import fork
from agent_tools.sandbox.arguments import (
    StrPath,
    assignments,
    bytes_or_file,
    check_file,
    given_bytes,
    path_text,
    whole_number,
)
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Keywords, Options, config_of, plain, timeout_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.engines.engine import Container
    from agent_tools.runtime.commands.process import Process
    from agent_tools.runtime.session.session import Session
    from agent_tools.runtime.sessions import FilesLike, Sessions
    from agent_tools.sandbox.audit import AuditedRun
    from agent_tools.skills.skill import Skill


# The opening of a fork: its session is there from the beginning, and once.


class ForkedOpening(Opening):
    """Keeps what it was forked from open: that is closed with it if nobody else holds it, and not before."""

    def __init__(self, parent: Opening) -> None:
        runtime = parent._open_runtime()
        super().__init__(parent.options, runtime, takes_functions=parent._takes_functions)
        self._parent = parent
        self._session: Session = fork(local(parent.session(), "A fork"))
        self._end = weakref.finalize(self, self._session.close)

    def session(self) -> Session:
        """Return the session; once it is closed, its methods say so."""
        return self._session

    def find(self) -> Session | None:
        """Return the session if it is open."""
        return None if self._session.is_closed else self._session

    @property
    def workspace(self) -> Workspace:
        """The work_dir of the sandbox as the host sees it."""
        return self._parent.workspace

    def close(self) -> None:
        """End the fork."""
        self._end()


_EMPTY = "get_ipython().reset(new_session=True)"
Self = TypeVar("Self", bound="Sandbox")
WORK_DIR = "."  # as the file service sees it


class Sandbox:
    """A container for code, commands and files. Nothing starts before the first use; any thread may use it.

    Code is served one run at a time, in turn; commands and files beside it, and beside each other. Paths are the
    sandbox's own, relative ones count from its work_dir, /workspace.

    Args:
        cfg: the options of `CodeInterpreter`, whose docstring explains each. Without `work_dir`, the sandbox has a
            folder of its own that goes with it.
        hostcalls: functions of the host that the code can call.
        runtime: the owner of the sessions, the shared one by default; or, as text, the option: an OCI runtime.
        options: options as keywords, which win over those in `cfg`.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    root = GUEST_WORK_DIR
    takes_functions = True
    """True if functions can be added later; the tool, which has none, spares its runs the wait for calls."""

    def __init__(
        self,
        cfg: Config | None = None,
        *,
        hostcalls: HostCallsLike | None = None,
        runtime: Sessions | str | None = None,
        **options: Unpack[Keywords],
    ) -> None:
        self.cfg, owner = config_of(cfg, options, hostcalls, runtime)
        if owner and self.cfg.get("engine"):
            raise InvalidParams("Give engine or runtime, not both: a runtime has its engine already.")
        self._opening = Opening(Options.read(self.cfg), owner, takes_functions=self.takes_functions)
        self._history = History(self.options.history) if self.options.history else None

    @property
    def id(self) -> str:
        """Its name in this process."""
        return self._opening.key

    @property
    def options(self) -> Options:
        """Its options, checked, with defaults filled in."""
        return self._opening.options

    @property
    def workspace(self) -> Workspace:
        """Its work_dir as the host sees it."""
        return self._opening.workspace

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills that are mounted read-only in it, below /skills."""
        return self.options.skills

    # -- code ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the container and its kernel now; otherwise the first use does.

        Raises:
            EngineError: the engine is not there, or cannot start it.
        """
        self._opening.session().open()

    def prepare_pool(self, patience: float = 0.0) -> int:
        """Begin to fill the pool (`pool`), without starting this sandbox; its first use would do so, too.

        Waits `patience` seconds at most until it is full, and returns how many are ready.

        Raises:
            EngineError: the engine is not there.
        """
        return self._opening.prepare_pool(patience) if self.options.pool else 0

    def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        variables: Mapping[str, Any] | None = None,
        on_output: Callable[[Output], object] | None = None,
        cancelled: threading.Event | None = None,
    ) -> Execution:
        """Run Python and return all it printed, returned, raised and drew; variables stay for the next run.

        Args:
            code: Python as IPython takes it, magics and `await` included; or text with Python in a fence, of which a
                `Notice` names what was left out. Text that can be read in several ways is an `Error` and does not run.
            timeout: seconds it may run; the sandbox's default otherwise. It returns within this and three seconds.
            variables: names and JSON values that are set before.
            on_output: is called with each output while the code runs, in this thread.
            cancelled: an event that, set and followed by `cancel`, ends the run.

        Raises:
            InvalidParams: the code, the time or a variable is unusable.
            EngineError: a container was needed and could not be started.
        """
        if variables:
            self._opening.session().variables.define(assignments(variables))
        return finished(self.stream(code, timeout, cancelled), on_output)

    def stream(
        self, code: Code, timeout: float | None = None, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Yield the outputs of code while it runs, and return the whole `Execution`. Errors as for `run_code`.

        Closing the generator early interrupts the code, and so does `cancel` with the event given here.
        """
        seconds = timeout_of(timeout, self.options.timeout)
        try:
            reading = read_code(code, self.options.limits)
        except UnclearCode as exc:
            error = Error("UnclearCode", exc.message, "")
            yield error
            return Execution((error,))
        notes = tuple(map(Notice, reading.notes))
        yield from notes
        workspace = self.workspace  # which makes work_dir anew where it is gone
        with self._audited(reading.code) as run:
            with contextlib.closing(self._opening.session().stream(reading.code, seconds, cancelled)) as outputs:
                execution = yield from outputs
            if run:
                run.executed(execution)
        workspace.last_changes = weakref.ref(execution.changed)
        if notes:
            execution = replace(execution, outputs=(*notes, *execution.outputs))
        if self._history:
            self._history.add(reading.code, execution)
        return execution

    def notebook(self, *, rich: bool = False) -> dict[str, Any]:
        """Return the last `history` runs of code as a Jupyter notebook (nbformat 4.5), for `json.dump`.

        HTML, SVG and JavaScript of the code's are left out, unless `rich`: a browser runs them in a trusted notebook.

        Raises:
            InvalidParams: the sandbox was made without `history`.
        """
        if self._history is None:
            raise InvalidParams("No runs were kept: make the sandbox with history=N, for its last N runs.")
        return notebook_of(self._history.runs, rich=rich)

    def _audited(self, code: str) -> contextlib.AbstractContextManager[AuditedRun | None]:
        return self.options.audit.run(code) if self.options.audit else contextlib.nullcontext()

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or the command that was given this event. Variables stay. For any thread."""
        cancelled.set()
        if session := self._opening.find():
            session.cancel(cancelled)

    def add_functions(self, functions: HostCallsLike) -> None:
        """Let the code call further functions of the host, from now on and in every later kernel.

        Raises:
            NotCrossing: a signature has a type that cannot cross, or a name is taken.
            SessionBusy: code is running in this thread.
        """
        self._opening.add_functions(functions)

    def put_functions(self, functions: HostCallsLike) -> None:
        """Let the code call these functions of the host in place of all others, from now on and in every later kernel.

        Names that were defined for others stay in the kernel, and calls of them fail. The sandbox must have been made
        with functions, or to take them.

        Raises:
            SessionBusy: code is running in this thread.
        """
        self._opening.put_functions(functions)

    # -- commands -----------------------------------------------------------------------------------------------------

    def run_command(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | BinaryIO | None = None,
        cwd: StrPath = "",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_output: int | None = None,
        on_output: OnOutput | None = None,
        cancelled: threading.Event | None = None,
    ) -> CommandResult:
        """Run a command to its end, beside whatever code runs.

        Args:
            command: a text for the shell (bash), or a list of texts: the program and its arguments, taken as they are.
            stdin: bytes for its stdin, which is at its end otherwise; or a file opened with 'rb', such as
                `sys.stdin.buffer`, which is read by a thread while the command runs.
            cwd: the folder it starts in.
            env: variables beside those of the sandbox.
            timeout: seconds until SIGTERM, and two more until SIGKILL; `command_timeout` (60) otherwise.
            max_output: bytes kept of each stream, the last ones; `max_command_output` (10 MiB) otherwise.
            on_output: is called with each piece of output as it comes, in this thread.
            cancelled: an event that, once set, ends the command.

        Raises:
            InvalidParams: an argument is unusable.
            SandboxGone: the sandbox ended before the command did.
            EngineError: a container was needed and could not be started.
            KeyboardInterrupt: Ctrl-C; the command got SIGINT, and `command_grace` seconds (2) to end.
        """
        limits = self.options.limits
        seconds = timeout_of(timeout, limits.command_timeout)
        request = self._request(command, cwd, env, max_output)
        request = replace(request, stdin=bytes_or_file(stdin, "stdin"), timeout=seconds)
        audit = self.options.audit
        with audit.command(command) if audit else contextlib.nullcontext() as run:
            result = self._opening.session().commands.run(request, on_output, cancelled or threading.Event())
            if run:
                run.commanded(result)
        return result

    def start_command(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        cwd: StrPath = "",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_output: int | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command in the background; it ends by itself, at its time limit if it has one, or with the sandbox.

        Arguments and errors are those of `run_command`, but for these: `stdin` is what its stdin begins with, b'' for
        nothing, and `write_stdin` adds more; without `timeout` it runs as long as the sandbox lives; `terminal` are the
        rows and columns of a pseudo-terminal for it, instead of pipes.
        """
        limits = self.options.limits
        request = self._request(command, cwd, env, max_output)
        seconds = None if timeout is None else timeout_of(timeout, limits.command_timeout)
        request = replace(request, stdin=given_bytes(stdin, "stdin"), timeout=seconds, terminal=terminal)
        audited = self.options.audit and self.options.audit.command_begun(command)
        try:
            process = self._opening.session().commands.start(request)
        except BaseException:
            if audited:
                audited.end("refused")
            raise
        if audited:
            process.when_over(partial(audited.end_command, process.result))
        return process

    # -- files --------------------------------------------------------------------------------------------------------

    def read_file(self, path: StrPath, *, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, from `offset` on and at most `max_bytes` of them.

        Raises:
            InvalidParams: an argument is of another type.
            OSError: `FileNotFoundError` and its kin, as the code itself would have it; EFBIG if `max_bytes` was not
                given and the file has more than `max_transfer_bytes` (100 MiB).
            SandboxGone: the sandbox ended meanwhile.
        """
        most = None if max_bytes is None else whole_number(max_bytes, "max_bytes")
        return self._files().read(path_text(path), whole_number(offset, "offset"), most)

    def write_file(self, path: StrPath, data: bytes | str | BinaryIO, *, append: bool = False) -> None:
        """Write a file anew, or at its end; folders above it are made. Text is written as UTF-8. Errors as above.

        Raises:
            InvalidParams: the data are neither bytes nor text, nor a file opened for reading.
        """
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            check_file(data, "data")
        self._files().write(path_text(path), data.encode() if isinstance(data, str) else data, append=append)

    def list_files(self, path: StrPath = ".") -> list[FileInfo]:
        """Return the entries of a folder, by name. Errors as for `read_file`."""
        return self._files().scan(path_text(path))

    def stat(self, path: StrPath, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, what a link leads to. Errors as for `read_file`."""
        return self._files().stat(path_text(path), follow=follow)

    def exists(self, path: StrPath) -> bool:
        """Return whether there is a file or folder of this path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def move(self, path: StrPath, to: StrPath) -> None:
        """Move or rename a file or folder; folders above its new place are made. Errors as for `read_file`."""
        self._files().move(path_text(path), path_text(to, "to"))

    def remove(self, path: StrPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with all in it. Errors as above."""
        self._files().remove(path_text(path), recursive=recursive)

    def make_dir(self, path: StrPath) -> None:
        """Make a folder and those above it; one that is there is no error. Errors as for `read_file`."""
        self._files().make_dir(path_text(path))

    def stage(self, files: Iterable[str]) -> tuple[StagedFile, ...]:
        """Bring files of the host, or of http(s) URLs, into work_dir; the result names those that could not be had."""
        return self.workspace.stage(list(files))

    # -- variables ----------------------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Take the variables back to where they were before the last code; files stay as they are.

        There is a checkpoint after each call that no other follows within 50 ms; once one was asked for, after each.

        Raises:
            CheckpointMissing: no code has run, or there is no checkpoint of the moment before it.
            KernelDied: restoring the checkpoint failed, or took too long.
        """
        self._opening.session().variables.undo()

    def checkpoint(self) -> RestorePoint:
        """Keep the variables as they are now, for `rollback`. Up to 16 are kept, until a restart.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
        """
        return self._opening.session().variables.checkpoint()

    def rollback(self, mark: RestorePoint) -> None:
        """Take the variables to where they were at a mark, as often as you like; files stay as they are.

        Raises:
            CheckpointMissing: the mark is kept no more; the variables are as they were.
            KernelDied: restoring the checkpoint failed, or took too long.
            InvalidParams: the mark is none.
        """
        if not isinstance(mark, RestorePoint):
            raise InvalidParams(f"{mark!r:.80} is no mark: give what `checkpoint` returned.")
        self._opening.session().variables.rollback(mark)

    def fork(self: Self) -> Self:
        """Return another kernel in the same container, which goes on from the variables as they are now.

        Both go on independently, also at the same time: each has its own variables, time limits, interrupts,
        checkpoints and calls of host functions. Files, commands, network, memory and CPUs are the container's. Up to 32
        (`max_branches`) are open at once, forks of forks included. `undo` leads back to the fork at most, and so does
        `restart`. Closing a fork ends its code, and the forks made of it; closing the sandbox ends all of them.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
            InvalidParams: there are too many forks.
            KernelDied: the fork did not come up within `restart_timeout`.
            EngineError: a container was needed and could not be started.
        """
        forked = object.__new__(type(self))
        history = self._history.copy() if self._history else None
        vars(forked).update(vars(self), _opening=ForkedOpening(self._opening), _history=history)
        return forked

    def fresh_kernel(self: Self) -> Self:
        """Return another kernel in the same container, as `fork` does, without the variables of this one.

        Modules that are imported stay so. After a crash it goes on from its last checkpoint, as a fork does. Errors as
        for `fork`.
        """
        forked = self.fork()
        forked._opening.session().variables.define(_EMPTY)
        return forked

    @overload
    def save(self, *, variables: Literal[False] = False) -> bytes: ...
    @overload
    def save(self, *, variables: Literal[True]) -> SavedState: ...
    def save(self, *, variables: bool = False) -> bytes | SavedState:
        """Return all files of work_dir as a tar; with `variables`, a `SavedState` with those of the kernel, too.

        Variables are pickled in the sandbox, by a copy of the kernel, within `max_variables_bytes` and
        `variables_timeout`. The result names those that could not be saved, with the reason.

        Raises:
            OSError: as for `read_file`; EFBIG beyond `max_archive_bytes` (1 GiB).
            KernelError: the kernel could not begin to save variables.
        """
        archive = io.BytesIO()
        report = self.save_to(archive, variables=variables)
        return SavedState(archive.getvalue(), report) if variables else archive.getvalue()

    def save_to(self, archive: BinaryIO, *, files: bool = True, variables: bool = True) -> VariablesReport:
        """Write what `save` returns to a file of the host, piece by piece; return what became of the variables.

        Without `files` it holds the variables alone. Errors as for `save`.
        """
        check_file(archive, "archive", to_write=True)
        most = self._opening.options.limits.max_archive_bytes
        path = WORK_DIR if files or not variables else NO_FILES
        return self._opening.session().variables.save(path, most, archive.write, variables=variables)

    def load(self, tar: bytes | BinaryIO | SavedState, *, variables: bool = True) -> VariablesReport:
        """Unpack what `save` gave into work_dir, within the sandbox, and set its variables; return what became of them.

        Variables that are there keep their values, but for those of the same names. What an archive holds is read in
        the sandbox alone: one from a stranger can do there what code of his could.

        Raises:
            InvalidParams: it is no archive of this kind.
            OSError: as for `write_file`.
        """
        if not isinstance(tar, (SavedState, bytes, bytearray, memoryview)):
            check_file(tar, "tar")
        has_variables, archive = opened(tar.tar if isinstance(tar, SavedState) else tar)
        return self._opening.session().variables.load(WORK_DIR, archive, variables=has_variables and variables)

    # -- its life -----------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt the running code as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        if session := self._opening.find():
            session.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone; files and commands stay."""
        if session := self._opening.find():
            session.restart()

    def reset(self) -> None:
        """Begin anew: a fresh kernel, no commands, and no files in work_dir, /tmp and HOME.

        Raises:
            EngineError: the sandbox could not be started again.
        """
        if session := self._opening.find():
            self.workspace.settle()
            session.reset()

    def close(self) -> None:
        """Remove the container, and the folder if it is the sandbox's own. The next use would start a new one."""
        self._opening.close()

    @property
    def is_alive(self) -> bool:
        """True while its container runs."""
        session = self._opening.find()
        return session is not None and session.is_alive

    @property
    def is_busy(self) -> bool:
        """True while code runs in it."""
        session = self._opening.find()
        return session is not None and session.is_busy

    @property
    def container(self) -> Container | None:
        """The container that runs now, by the engine's id, if there is one."""
        session = self._opening.find()
        return session.sandbox if session else None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- its configuration --------------------------------------------------------------------------------------------

    def to_config(self) -> Config:
        """Return its options as JSON values; `from_config` makes another sandbox like it, with nothing in it yet.

        Raises:
            InvalidParams: it has host functions, which are no values.
        """
        if self.options.hostcalls:
            raise InvalidParams("A sandbox with host functions has no configuration: functions are no JSON values.")
        return {name: plain(value) for name, value in self.cfg.items()}

    @classmethod
    def from_config(cls, config: Config) -> Sandbox:
        """Return a sandbox with the options of `to_config`."""
        return cls(config)

    def __reduce__(self) -> tuple[Callable[[Config], Sandbox], tuple[Config]]:
        return type(self).from_config, (self.to_config(),)

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _files(self) -> FilesLike:
        return self._opening.session().files

    def _request(
        self,
        command: str | Sequence[str],
        cwd: StrPath,
        env: Mapping[str, str] | None,
        max_output: int | None,
    ) -> Request:
        most = self.options.limits.max_command_output if max_output is None else max_output
        whole_number(most, "max_output", 1)
        if not isinstance(env, (Mapping, type(None))):
            raise InvalidParams(f"env={env!r:.80} is not usable: give a dict of texts.")
        return Request(command, cwd=path_text(cwd, "cwd"), env=dict(env or {}), max_output=most)
