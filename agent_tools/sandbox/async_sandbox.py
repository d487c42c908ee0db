"""The sandbox for asyncio and trio. Each method runs the method of `Sandbox` in a worker thread."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Literal, ParamSpec, TypeVar, overload

from agent_tools.other_names import SANDBOX, refuse
from agent_tools.results.commands import CommandOutput, CommandResult, Cursor, OnOutput
from agent_tools.results.execution import Execution, Output
from agent_tools.results.variables import SavedState
from agent_tools.runtime.in_thread import in_thread, iterate_in_thread, made_in_thread, to_its_end
from agent_tools.sandbox.method_arguments import StrPath
from agent_tools.sandbox.options import Config, Keywords
from agent_tools.sandbox.sandbox import OtherNames, Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from agent_tools.code_mode.toolset import HostCallsLike
    from agent_tools.runtime.commands.process import Process
    from agent_tools.runtime.runtime import Runtime
    from agent_tools.skills.skill import Skill

T = TypeVar("T")
P = ParamSpec("P")
CHECK_SECONDS = 0.25  # seconds that one poll of a background command waits in its thread


def awaited(
    method: Callable[Concatenate[Sandbox, P], T],
) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
    """Return an async method that runs a method of `Sandbox` in a thread, with the same types and docstring."""

    @wraps(method)
    async def call(self: AsyncSandbox, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _do(partial(getattr(self.sync, method.__name__), *args, **kwargs))

    return call


class AsyncSandbox(metaclass=OtherNames):
    """`Sandbox` for async code; its docstrings apply here too. Cancelling a call waits for the end of its work,
    which it stops if that is code or a command.

    `on_output` functions are called in another thread. `sync` is the `Sandbox` that does the work.
    """

    root = Sandbox.root

    def __init__(
        self,
        cfg: Config | None = None,
        *,
        hostcalls: HostCallsLike | None = None,
        runtime: Runtime | str | None = None,
        **options: Unpack[Keywords],
    ) -> None:
        self.sync = Sandbox(cfg, hostcalls=hostcalls, runtime=runtime, **options)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            refuse(type(self).__name__, name, SANDBOX)

    @property
    def id(self) -> str:
        """The sandbox's name in this process."""
        return self.sync.id

    @property
    def is_alive(self) -> bool:
        """True while the container runs."""
        return self.sync.is_alive

    @property
    def is_busy(self) -> bool:
        """True while code runs in the sandbox."""
        return self.sync.is_busy

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The skills mounted read-only in the sandbox, below /skills."""
        return self.sync.skills

    start = awaited(Sandbox.start)
    prepare_pool = awaited(Sandbox.prepare_pool)

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        variables: Mapping[str, Any] | None = None,
        on_output: Callable[[Output], object] | None = None,
    ) -> Execution:
        """Run Python; cancelling interrupts it, and variables stay."""
        given = {"timeout": timeout, "variables": variables, "on_output": on_output}
        return await self._cancellable(partial(self.sync.run_code, code, **given))  # type: ignore[arg-type]

    def stream(self, code: str, timeout: float | None = None) -> AsyncGenerator[Output, None]:
        """Yield the outputs of code while it runs."""
        cancelled = threading.Event()
        return iterate_in_thread(self.sync.stream(code, timeout, cancelled), partial(self.sync.cancel, cancelled))

    add_functions = awaited(Sandbox.add_functions)
    put_functions = awaited(Sandbox.put_functions)

    async def run_command(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | BinaryIO | None = None,
        cwd: StrPath = "",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        max_output: int | None = None,
        on_output: OnOutput | None = None,
        script: str = "",
    ) -> CommandResult:
        """Run a command to its end; cancelling kills it with all processes of its session."""
        given = {"stdin": stdin, "cwd": cwd, "env": env, "timeout": timeout, "max_output": max_output}
        work = partial(self.sync.run_command, command, on_output=on_output, script=script, **given)  # type: ignore[arg-type]
        return await self._cancellable(work)

    async def start_command(
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
    ) -> AsyncProcess:
        """Start a command in the background."""
        given = {"stdin": stdin, "cwd": cwd, "env": env, "timeout": timeout, "max_output": max_output}
        work = partial(self.sync.start_command, command, terminal=terminal, script=script, **given)  # type: ignore[arg-type]
        return AsyncProcess(await made_in_thread(work, lambda process: process.kill()))

    read_file = awaited(Sandbox.read_file)
    write_file = awaited(Sandbox.write_file)
    list_files = awaited(Sandbox.list_files)
    stat = awaited(Sandbox.stat)
    exists = awaited(Sandbox.exists)
    move = awaited(Sandbox.move)
    remove = awaited(Sandbox.remove)
    make_dir = awaited(Sandbox.make_dir)

    @overload
    async def save(self, *, variables: Literal[False] = False) -> bytes: ...
    @overload
    async def save(self, *, variables: Literal[True]) -> SavedState: ...
    async def save(self, *, variables: bool = False) -> bytes | SavedState:
        """Return all files of work_dir as a tar; with `variables`, a `SavedState` with those of the kernel, too."""
        work: Callable[[], bytes | SavedState] = partial(self.sync.save, variables=variables)
        return await _do(work)

    save_to = awaited(Sandbox.save_to)
    load = awaited(Sandbox.load)
    stage = awaited(Sandbox.stage)

    def notebook(self, *, rich: bool = False) -> dict[str, Any]:
        """Return the last runs as a Jupyter notebook, as `Sandbox.notebook` does."""
        return self.sync.notebook(rich=rich)

    def interrupt(self) -> None:
        """Interrupt the running code as Ctrl-C would; does not wait."""
        self.sync.interrupt()

    undo = awaited(Sandbox.undo)
    checkpoint = awaited(Sandbox.checkpoint)
    rollback = awaited(Sandbox.rollback)

    async def fork(self) -> AsyncSandbox:
        """Return another kernel in the same container, which goes on from the variables as they are now."""
        return self._with(await made_in_thread(self.sync.fork, lambda forked: forked.close()))

    async def fresh_kernel(self) -> AsyncSandbox:
        """Return another kernel in the same container, without the variables of this one."""
        return self._with(await made_in_thread(self.sync.fresh_kernel, lambda fresh: fresh.close()))

    def _with(self, sync: Sandbox) -> AsyncSandbox:
        made = object.__new__(type(self))
        made.sync = sync
        return made

    restart = awaited(Sandbox.restart)
    reset = awaited(Sandbox.reset)

    async def close(self) -> None:
        """Remove the container, even if this call is cancelled."""
        await to_its_end(self.sync.close)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def to_config(self) -> Config:
        """Return the sandbox's options as JSON values."""
        return self.sync.to_config()

    @classmethod
    def from_config(cls, config: Config) -> AsyncSandbox:
        """Return a sandbox with the options of `to_config`."""
        return cls(config)

    def __reduce__(self) -> tuple[Callable[[Config], AsyncSandbox], tuple[Config]]:
        return type(self).from_config, (self.to_config(),)

    async def _cancellable(self, work: Callable[..., T]) -> T:
        cancelled = threading.Event()
        return await in_thread(partial(work, cancelled=cancelled), partial(self.sync.cancel, cancelled))


class AsyncProcess:
    """`Process`, a background command, for async code; its docstrings apply. `sync` is the `Process` underneath."""

    def __init__(self, sync: Process) -> None:
        self.sync = sync

    @property
    def pid(self) -> int:
        """The pid within the sandbox; 0 until the command runs."""
        return self.sync.pid

    @property
    def is_over(self) -> bool:
        """True once the command has ended and no more output will come."""
        return self.sync.is_over

    @property
    def place(self) -> Cursor:
        """The end of the output so far."""
        return self.sync.place

    def poll(self) -> int | None:
        """Return the exit code; None while the command runs."""
        return self.sync.poll()

    async def wait(self) -> CommandResult:
        """Wait for the command's end; cancelling leaves it running."""
        while not self.sync.is_over:
            await self.changed(self.sync.place)
        return self.sync.result()

    async def changed(self, cursor: tuple[int, int]) -> None:
        """Wait for output after a cursor, or for the command's end. With asyncio no thread waits."""
        asyncio = sys.modules.get("asyncio")
        try:
            loop = asyncio.get_running_loop() if asyncio else None
        except RuntimeError:  # trio's
            loop = None
        if asyncio is None or loop is None:
            while not self.sync.is_over and self.sync.place == cursor:
                await self.read(cursor, wait=CHECK_SECONDS)
            return
        event = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

        with self.sync.watched(tell):
            while not self.sync.is_over and self.sync.place == cursor:
                await event.wait()
                event.clear()

    async def read(self, cursor: tuple[int, int] = (0, 0), wait: float = 0.0) -> CommandOutput:
        """Return the output from a cursor on; wait if there is none yet."""
        return await _do(partial(self.sync.read, cursor, wait))

    async def write_stdin(self, data: bytes, timeout: float | None = None) -> None:
        """Write to the command's stdin."""
        await _do(partial(self.sync.write_stdin, data, timeout))

    def close_stdin(self) -> None:
        """Close stdin after everything that was written."""
        self.sync.close_stdin()

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        self.sync.signal(number)

    def resize(self, rows: int, columns: int) -> None:
        """Resize the command's terminal."""
        self.sync.resize(rows, columns)

    def kill(self) -> None:
        """Kill the command at once, with all processes of its session."""
        self.sync.kill()


async def _do(work: Callable[[], T]) -> T:
    """Run a short call in a thread."""
    return await in_thread(work, lambda: None)
