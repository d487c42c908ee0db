"""The one public seam: a container in which code and commands run and files lie. It knows of no framework."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from agent_tools.code_reader import Code, read_code
from agent_tools.command import CommandResult, OnOutput
from agent_tools.errors import InvalidParams, UnclearCode
from agent_tools.execution import Error, Execution, Notice, Output, finished
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.engine import GUEST_WORK_DIR
from agent_tools.sandbox.arguments import StrPath, bytes_or_file, given_bytes, path_text, whole_number
from agent_tools.sandbox.opening import Opening
from agent_tools.sandbox.options import Config, Keywords, Options, config_of, plain, timeout_of
from agent_tools.sandbox.telling import told
from agent_tools.sandbox.variables import assignments
from agent_tools.sandbox.with_checkpoints import WithCheckpoints
from agent_tools.sandbox.with_files import WithFiles

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.runtime.commands.process import Process
    from agent_tools.runtime.engine import Container
    from agent_tools.runtime.sessions import Sessions


class Sandbox(WithFiles, WithCheckpoints):
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
        super().__init__(Opening(Options.read(self.cfg), owner, takes_functions=self.takes_functions))

    @property
    def id(self) -> str:
        """Its name in this process."""
        return self._opening.key

    @property
    def options(self) -> Options:
        """Its options, checked, with defaults filled in."""
        return self._opening.options

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
            self._opening.session().define(assignments(variables))
        with contextlib.closing(self.stream(code, timeout, cancelled)) as outputs:
            return finished(told(outputs, on_output) if on_output else outputs)

    def stream(
        self, code: Code, timeout: float | None = None, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Yield the outputs of code while it runs, and return the whole `Execution`. Errors as for `run_code`.

        Closing the generator early interrupts the code, and so does `cancel` with the event given here.
        """
        seconds = timeout_of(timeout, self.options.timeout, self.options.limits)
        try:
            reading = read_code(code, self.options.limits)
        except UnclearCode as exc:
            error = Error("UnclearCode", exc.message, "")
            yield error
            return Execution((error,))
        notes = tuple(map(Notice, reading.notes))
        yield from notes
        workspace = self.workspace  # which makes work_dir anew where it is gone
        outputs = self._opening.session().stream(reading.code, seconds, cancelled)
        with contextlib.closing(outputs):
            execution = yield from outputs
        workspace.last_changes = weakref.ref(execution.changed)
        return replace(execution, outputs=(*notes, *execution.outputs)) if notes else execution

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
        seconds = timeout_of(timeout, limits.command_timeout, limits)
        request = self._request(command, cwd, env, max_output)
        request = replace(request, stdin=bytes_or_file(stdin, "stdin"), timeout=seconds)
        return self._opening.session().commands.run(request, on_output, cancelled or threading.Event())

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
        seconds = None if timeout is None else timeout_of(timeout, limits.command_timeout, limits)
        request = replace(request, stdin=given_bytes(stdin, "stdin"), timeout=seconds, terminal=terminal)
        return self._opening.session().commands.start(request)

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
