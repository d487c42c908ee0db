"""`Sandbox`: a container that runs code and commands and holds files. Independent of any agent framework."""

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
from agent_tools.other_names import SANDBOX, refuse
from agent_tools.results.commands import CommandResult, OnOutput
from agent_tools.results.execution import Error, Execution, Notice, Output, StagedFile, finished
from agent_tools.results.files import FileInfo
from agent_tools.results.notebook import History, notebook_of
from agent_tools.results.variables import RestorePoint, SavedState, VariablesReport
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.files.archives import NO_FILES, opened
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.session.session import NOT_RUN, Session, fork, fresh_session
from agent_tools.sandbox.forked_opening import ForkedOpening
from agent_tools.sandbox.method_arguments import (
    StrPath,
    bytes_or_file,
    check_file,
    given_bytes,
    path_text,
    whole_number,
)
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Keywords, Options, config_of, plain, timeout_of
from agent_tools.sandbox.passed_variables import assignments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.engines.engine import EngineContainer
    from agent_tools.runtime.commands.process import Process
    from agent_tools.runtime.files.guest_files import GuestFiles
    from agent_tools.runtime.runtime import Runtime
    from agent_tools.skills.skill import Skill


Self = TypeVar("Self", bound="Sandbox")
WORK_DIR = "."  # the working folder of the file service


class OtherNames(type):
    """Answers for what is no attribute of a class of sandboxes, such as `Sandbox.create`, with the name that is."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name):
            refuse(cls.__name__, name, SANDBOX)


class Sandbox(metaclass=OtherNames):
    """A container for code, commands and files. The container starts at first use; all methods are thread-safe.

    Runs of code wait for each other in a queue; commands and file operations run at the same time as code and each
    other. Paths are paths in the sandbox; relative paths start at its work_dir, /workspace.

    Args:
        cfg: the options of `CodeInterpreter`, whose docstring explains each. Without `work_dir`, the sandbox has a
            folder of its own, removed with it.
        hostcalls: functions of the host that the code can call.
        runtime: the owner of the sessions, the shared one by default; or, as text, the option: an OCI runtime.
        options: options as keywords, which win over those in `cfg`.

    Raises:
        InvalidParams: an option is unknown, unusable, or would break the isolation.
    """

    root = GUEST_WORK_DIR
    takes_functions = True
    """True if functions can be added later. The tool sets False if it has none: its runs need not wait for calls."""

    def __init__(
        self,
        cfg: Config | None = None,
        *,
        hostcalls: HostCallsLike | None = None,
        runtime: Runtime | str | None = None,
        **options: Unpack[Keywords],
    ) -> None:
        self.cfg, owner = config_of(cfg, options, hostcalls, runtime)
        if owner and self.cfg.get("engine"):
            raise InvalidParams("Give engine or runtime, not both: a runtime already has an engine.")
        self._opening = Opening(Options.read(self.cfg), owner, takes_functions=self.takes_functions)
        self._history = History(self.options.history) if self.options.history else None

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            refuse(type(self).__name__, name, SANDBOX)

    @property
    def id(self) -> str:
        """The sandbox's name in this process."""
        return self._opening.key

    @property
    def options(self) -> Options:
        """The sandbox's options, checked, with defaults filled in."""
        return self._opening.options

    @property
    def workspace(self) -> Workspace:
        """The sandbox's work_dir on the host."""
        return self._opening.workspace

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills mounted read-only in the sandbox, below /skills."""
        return self.options.skills

    # -- code ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the container and its kernel now instead of at first use.

        Raises:
            EngineError: the engine cannot be reached, or cannot start the container.
        """
        self._opening.session().open()

    def prepare_pool(self, patience: float = 0.0) -> int:
        """Begin to fill the pool (`pool`) without starting this sandbox; otherwise the first use begins to fill it.

        Waits up to `patience` seconds until it is full, and returns how many sandboxes are ready.

        Raises:
            EngineError: the engine cannot be reached.
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
        """Run Python and return everything it printed, returned, raised and drew; variables stay for the next run.

        Args:
            code: Python as IPython accepts it, magics and `await` included; or text with Python in a fence, where a
                `Notice` names the text that was left out. Text that can be read in several ways is an `Error` and does
                not run.
            timeout: seconds it may run; None for the sandbox's default. The call returns within `timeout` + 3 s.
            variables: names and JSON values to set before the code runs, in at most `timeout` seconds of
                their own; at most 16 MiB.
            on_output: function called with each output while the code runs, in this thread.
            cancelled: an event; to end the run, set it and call `cancel`.

        Raises:
            InvalidParams: the code, the time or a variable is unusable.
            EngineError: a container was needed and could not be started.
        """
        return finished(self.stream(code, timeout, cancelled, variables=variables), on_output)

    def stream(
        self,
        code: Code,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
    ) -> Generator[Output, None, Execution]:
        """Yield the outputs of code while it runs, and return the whole `Execution`. Errors as for `run_code`.

        Closing the generator early interrupts the code, as does `cancel` with the event passed as `cancelled`.
        """
        seconds = timeout_of(timeout, self.options.timeout)
        definitions = assignments(variables) if variables else ""
        # A model's text is read here for programs and adapters, which pass it on as it is, as `run_code` promises. A
        # tool has read its call's arguments already, and passes a `Reading`, which stays as it is.
        try:
            reading = read_code(code, self.options.limits)
        except UnclearCode as exc:
            error = Error("UnclearCode", exc.message, "")
            yield error
            return Execution((error,))
        notes = tuple(map(Notice, reading.notes))
        yield from notes
        workspace = self.workspace  # which makes work_dir again if it is gone
        with self.options.audit.run(reading.code) as run:
            session = self._opening.session()
            outputs = session.stream(reading.code, seconds, cancelled, definitions=definitions)
            with contextlib.closing(outputs):
                execution = yield from outputs
            run.executed(execution, was_cancelled=bool(cancelled and cancelled.is_set()))
        workspace.last_changes = weakref.ref(execution.changed)
        if notes:
            execution = replace(execution, outputs=(*notes, *execution.outputs))
        if self._history and execution.error != NOT_RUN:
            self._history.add(reading.code, execution)
        return execution

    def notebook(self, *, rich: bool = False) -> dict[str, Any]:
        """Return the last `history` runs of code as a Jupyter notebook (nbformat 4.5), for `json.dump`.

        HTML, SVG and JavaScript outputs are left out, unless `rich` is set: a browser runs them in a trusted notebook.

        Raises:
            InvalidParams: the sandbox was made without `history`.
        """
        if self._history is None:
            raise InvalidParams("No runs were kept: make the sandbox with history=N, for its last N runs.")
        return notebook_of(self._history.runs, rich=rich)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or the command that was started with this event. Variables stay. Any thread may call it."""
        cancelled.set()
        if session := self._opening.find():
            session.cancel(cancelled)

    def add_functions(self, functions: HostCallsLike) -> None:
        """Add host functions that user code can call, from now on and in every later kernel.

        Raises:
            NotCrossing: a signature has a type that cannot be sent, or a name is taken.
            SessionBusy: code is running in this thread.
        """
        self._opening.add_functions(functions)

    def put_functions(self, functions: HostCallsLike) -> None:
        """Replace all host functions that user code can call by these, from now on and in every later kernel.

        Names of earlier functions stay defined in the kernel, and calling them fails. The sandbox must have been made
        with functions, or so that they can be added later.

        Raises:
            SessionBusy: code is running in this thread.
        """
        self._opening.add_functions(functions, others=False)

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
        script: str = "",
    ) -> CommandResult:
        """Run a command to its end; code may run at the same time.

        Args:
            command: a text for the shell (bash), or a list of texts: the program and its arguments, unchanged.
            stdin: bytes for stdin, or a file opened with 'rb', such as `sys.stdin.buffer`, which a thread reads while
                the command runs; by default stdin is empty.
            cwd: the folder it starts in.
            env: environment variables to add to the sandbox's.
            timeout: seconds until SIGTERM; SIGKILL follows 2 s later. Default: `command_timeout` (60).
            max_output: bytes kept at the end of each stream. Default: `max_command_output` (10 MiB).
            on_output: function called with each piece of output as it comes, in this thread.
            cancelled: an event that, once set, ends the command.
            script: the source that the command runs; the audit log has it instead of the command.

        Raises:
            InvalidParams: an argument is unusable.
            SandboxGone: the sandbox ended before the command did.
            EngineError: a container was needed and could not be started.
            KeyboardInterrupt: Ctrl-C; the command gets SIGINT and has `command_grace` (2) seconds to end.
        """
        limits = self.options.limits
        seconds = timeout_of(timeout, limits.command_timeout)
        request = self._request(command, cwd, env, max_output)
        request = replace(request, stdin=bytes_or_file(stdin, "stdin"), timeout=seconds)
        with self.options.audit.command(script or command) as run:
            result = self._opening.session().commands.run(request, on_output, cancelled or threading.Event())
            run.commanded(result, was_cancelled=bool(cancelled and cancelled.is_set()))
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
        script: str = "",
    ) -> Process:
        """Start a command in the background; it ends by itself, at its time limit if it has one, or with the sandbox.

        Arguments and errors as for `run_command`, with these differences: `stdin` is the first bytes of stdin, b'' for
        an open and empty one, and `write_stdin` adds more; without `timeout` the command runs as long as the sandbox;
        `terminal` is (rows, columns) of a pseudo-terminal to use instead of pipes.
        """
        limits = self.options.limits
        request = self._request(command, cwd, env, max_output)
        seconds = None if timeout is None else timeout_of(timeout, limits.command_timeout)
        request = replace(request, stdin=given_bytes(stdin, "stdin"), timeout=seconds, terminal=terminal)
        run = self.options.audit.command(script or command)
        try:
            session = self._opening.session()
            process = session.commands.start(request)
        except BaseException:
            run.end("refused")
            raise
        process.when_over(lambda: session.behind(partial(run.end_command, process.result)))  # a log may keep it waiting
        return process

    # -- files --------------------------------------------------------------------------------------------------------

    def read_file(self, path: StrPath, *, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, from `offset` on and at most `max_bytes` of them.

        Raises:
            InvalidParams: an argument is of another type.
            OSError: the error that user code would get, such as `FileNotFoundError`; EFBIG if `max_bytes` was not given
                and the file has more than `max_transfer_bytes` (100 MiB).
            SandboxGone: the sandbox ended in the meantime.
        """
        most = None if max_bytes is None else whole_number(max_bytes, "max_bytes")
        return self._files().read(path_text(path), whole_number(offset, "offset"), most)

    def write_file(self, path: StrPath, data: bytes | str | BinaryIO, *, append: bool = False) -> None:
        """Replace a file, or append to it; parent folders are made. Text is written as UTF-8.

        Errors as for `read_file`.

        Raises:
            InvalidParams: the data are not bytes, text or a file opened for reading.
        """
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            check_file(data, "data")
        self._files().write(path_text(path), data.encode() if isinstance(data, str) else data, append=append)

    def list_files(self, path: StrPath = ".", *, follow: bool = False) -> list[FileInfo]:
        """Return the entries of a folder, by name. Errors as for `read_file`.

        With `follow`, an entry that is a link has the facts of its target; only a link without one remains a link.
        """
        return self._files().scan(path_text(path), follow=follow)

    def stat(self, path: StrPath, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, the target of a link. Errors as for `read_file`."""
        return self._files().stat(path_text(path), follow=follow)

    def exists(self, path: StrPath) -> bool:
        """Return whether a file or folder of this path exists."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def move(self, path: StrPath, to: StrPath) -> None:
        """Move or rename a file or folder; parent folders of the new path are made. Errors as for `read_file`."""
        self._files().move(path_text(path), path_text(to, "to"))

    def remove(self, path: StrPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder, or with `recursive` a full one. Errors as for `read_file`."""
        self._files().remove(path_text(path), recursive=recursive)

    def make_dir(self, path: StrPath) -> None:
        """Make a folder and its parents; no error if it exists. Errors as for `read_file`."""
        self._files().make_dir(path_text(path))

    def stage(self, files: Iterable[str]) -> tuple[StagedFile, ...]:
        """Copy files from the host or from http(s) URLs into work_dir.

        The result names files that could not be copied.
        """
        return self.workspace.stage(list(files))

    # -- variables ----------------------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Restore the variables as they were before the last code; files stay as they are.

        There is a checkpoint after each run; of runs that follow one another within 50 ms, after the first eight and
        then one a second, until the first use of `undo`, `rollback`, `checkpoint` or `fork`.

        Raises:
            CheckpointMissing: no code has run, or there is no checkpoint of the moment before it.
            KernelDied: restoring the checkpoint failed, or took too long.
        """
        self._opening.session().variables.undo()

    def checkpoint(self) -> RestorePoint:
        """Save the variables as they are now, for `rollback`. Up to 16 checkpoints are kept, until a restart.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
        """
        return self._opening.session().variables.checkpoint()

    def rollback(self, mark: RestorePoint) -> None:
        """Restore the variables as they were at a checkpoint, any number of times; files stay as they are.

        Raises:
            CheckpointMissing: the checkpoint is no longer kept; the variables are unchanged.
            KernelDied: restoring the checkpoint failed, or took too long.
            InvalidParams: the mark was not returned by `checkpoint`.
        """
        if not isinstance(mark, RestorePoint):
            raise InvalidParams(f"{mark!r:.80} is not a checkpoint: give the value that `checkpoint` returned.")
        self._opening.session().variables.rollback(mark)

    def fork(self: Self) -> Self:
        """Return another kernel in the same container, which goes on from the variables as they are now.

        Both continue independently and may run at the same time: each has its own variables, time limits, interrupts,
        checkpoints and calls of host functions. Files, commands, network, memory and CPUs are the container's. Up to 32
        (`max_branches`) are open at once, forks of forks included. `undo` and `restart` go back to the moment of the
        fork at most. Closing a fork ends its code and closes its own forks; closing the sandbox closes all of them.

        Raises:
            CheckpointMissing: threads of the code, or processes that it has started, are running.
            InvalidParams: there are too many forks.
            KernelDied: the fork was not ready within `start_timeout`.
            EngineError: a container was needed and could not be started.
        """
        return self._beside(fork, self._history.copy() if self._history else None)

    def fresh_kernel(self: Self) -> Self:
        """Return another kernel in the same container, as `fork` does, but as after `restart`; at once if code runs.

        After a crash it continues from its last checkpoint. Errors as for `fork`, but for CheckpointMissing.
        """
        return self._beside(fresh_session, History(self.options.history) if self.options.history else None)

    def _beside(self: Self, begin: Callable[[Session], Session], history: History | None) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self), _opening=ForkedOpening(self._opening, begin), _history=history)
        return made

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
        """Write the archive of `save` to a file on the host, piece by piece; return a report on the variables.

        Without `files` it holds only the variables. Errors as for `save`.
        """
        check_file(archive, "archive", to_write=True)
        most = self._opening.options.limits.max_archive_bytes
        path = WORK_DIR if files or not variables else NO_FILES
        return self._opening.session().variables.save(path, most, archive.write, variables=variables)

    def load(self, tar: bytes | BinaryIO | SavedState, *, variables: bool = True) -> VariablesReport:
        """Unpack an archive of `save` into work_dir, within the sandbox, set its variables, and report on them.

        Existing variables keep their values, unless the archive has the same names. The archive is read only inside the
        sandbox, where an untrusted archive can do as much as untrusted code.

        Raises:
            InvalidParams: it is not an archive of `save`.
            OSError: as for `write_file`.
        """
        if not isinstance(tar, (SavedState, bytes, bytearray, memoryview)):
            check_file(tar, "tar")
        has_variables, archive = opened(tar.tar if isinstance(tar, SavedState) else tar)
        return self._opening.session().variables.load(WORK_DIR, archive, variables=has_variables and variables)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt the running code as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        if session := self._opening.find():
            session.interrupt()

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone; files and commands stay."""
        if session := self._opening.find():
            session.restart()

    def reset(self) -> None:
        """Reset the sandbox: a fresh kernel, no commands, and no files in work_dir, /tmp and HOME.

        Raises:
            EngineError: the sandbox could not be started again.
        """
        if session := self._opening.find():
            self.workspace.settle()
            session.reset()

    def close(self) -> None:
        """Remove the container, and work_dir if it is the sandbox's own folder. The next use starts a new container."""
        self._opening.close()

    @property
    def is_alive(self) -> bool:
        """True while the container runs."""
        session = self._opening.find()
        return session is not None and session.is_alive

    @property
    def is_busy(self) -> bool:
        """True while code runs in the sandbox."""
        session = self._opening.find()
        return session is not None and session.is_busy

    @property
    def container(self) -> EngineContainer | None:
        """The engine's id of the running container, or None."""
        session = self._opening.find()
        return session.container if session else None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- its configuration --------------------------------------------------------------------------------------------

    def to_config(self) -> Config:
        """Return the sandbox's options as JSON values, from which `from_config` makes a new, empty sandbox.

        Raises:
            InvalidParams: it has host functions, which are not JSON values.
        """
        if self.options.hostcalls:
            raise InvalidParams("A sandbox with host functions has no configuration: functions are not JSON values.")
        return {name: plain(value) for name, value in self.cfg.items()}

    @classmethod
    def from_config(cls, config: Config) -> Sandbox:
        """Return a sandbox with the options of `to_config`."""
        return cls(config)

    def __reduce__(self) -> tuple[Callable[[Config], Sandbox], tuple[Config]]:
        return type(self).from_config, (self.to_config(),)

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _files(self) -> GuestFiles:
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
