"""Interfaces of sessions and their owners, on this or on another machine.

`Runtime` and `Session` implement them in this process, and a fleet (agent_tools/fleet) on other machines. The interface
is at the session and not at the engine, so that only code and outputs cross the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from agent_tools.engines.engine import Container, Guest, RecipeLike
    from agent_tools.results.execution import CommandResult, Execution, FileInfo, OnOutput, Output
    from agent_tools.results.variables import RestorePoint, VariablesReport
    from agent_tools.runtime.commands.commands import Request
    from agent_tools.runtime.commands.process import Process
    from agent_tools.runtime.files.archives import Pieces
    from agent_tools.runtime.host_calls.function import HostFunction
    from agent_tools.runtime.pool import PoolState
    from agent_tools.runtime.sandbox.kernels import SessionSpec


class FilesLike(Protocol):
    """The files of a sandbox. `GuestFiles` says what each method does."""

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes: ...  # noqa: D102
    def write(self, path: str, data: bytes | BinaryIO, *, append: bool = False) -> None: ...  # noqa: D102
    def scan(self, path: str) -> list[FileInfo]: ...  # noqa: D102
    def stat(self, path: str, *, follow: bool = True) -> FileInfo: ...  # noqa: D102
    def move(self, path: str, to: str) -> None: ...  # noqa: D102
    def remove(self, path: str, *, recursive: bool = False) -> None: ...  # noqa: D102
    def make_dir(self, path: str) -> None: ...  # noqa: D102


class CommandsLike(Protocol):
    """The commands of a sandbox. `Commands` says what each method does."""

    def run(  # noqa: D102
        self, request: Request, on_output: OnOutput | None, cancelled: threading.Event
    ) -> CommandResult: ...
    def start(self, request: Request) -> Process: ...  # noqa: D102


class VariablesLike(Protocol):
    """The variables of a session. `SessionVariables` says what each method does."""

    def define(self, source: str) -> None: ...  # noqa: D102
    def undo(self) -> None: ...  # noqa: D102
    def checkpoint(self) -> RestorePoint: ...  # noqa: D102
    def rollback(self, mark: RestorePoint) -> None: ...  # noqa: D102
    def save(  # noqa: D102
        self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool
    ) -> VariablesReport: ...
    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport: ...  # noqa: D102


class RunsCode(Protocol):
    """The part of a session that code mode and tools need. `Session` says what each does and raises."""

    def open(self) -> None:
        """Start the sandbox and its kernel now; otherwise the first run does."""
        ...

    def stream(
        self, code: str, timeout: float, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Run code and yield its outputs while it runs; the generator returns the settled whole."""
        ...

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or command that was given this event. Variables stay."""
        ...

    def restart(self) -> None:
        """Replace the kernel by a fresh one."""
        ...

    def close(self) -> None:
        """End all code and remove the sandbox."""
        ...


class SessionLike(RunsCode, Protocol):
    """A session for `Sandbox`: the methods that every implementation must have. Any thread may call them."""

    @property
    def is_alive(self) -> bool:
        """True while its sandbox runs."""
        ...

    @property
    def is_busy(self) -> bool:
        """True while code is running."""
        ...

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        ...

    @property
    def sandbox(self) -> Container | None:
        """The running sandbox, if there is one."""
        ...

    @property
    def files(self) -> FilesLike:
        """The files of its sandbox, which is started if there is none."""
        ...

    @property
    def commands(self) -> CommandsLike:
        """The commands of its sandbox, which is started if there is none."""
        ...

    @property
    def variables(self) -> VariablesLike:
        """The variables of its kernel, which is started if there is none."""
        ...

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would."""
        ...

    def reset(self) -> None:
        """Remove the sandbox with its contents, and empty work_dir."""
        ...

    def add_functions(self, functions: Mapping[str, HostFunction], prelude: str, *, others: bool = True) -> None:
        """Add host functions, which `prelude` defines for the code; without `others`, replace all by them."""
        ...


class Sessions(Protocol):
    """An owner of sessions. `Runtime` documents the methods and their errors."""

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the owner on this machine of the files in a work_dir. Raises EngineError."""
        ...

    def open(self, key: str, spec: SessionSpec) -> SessionLike:
        """Return the session of this key, made if there is none that is open."""
        ...

    def find(self, key: str) -> SessionLike | None:
        """Return the open session of this key, if there is one."""
        ...

    def close(self, key: str) -> None:
        """Close one session; one that is not there is no error."""
        ...

    def prepare(self, spec: SessionSpec, patience: float = 0.0) -> int:
        """Begin to make sandboxes ahead for sessions like this; return how many are ready."""
        ...

    @property
    def ensure_image(self) -> Callable[[RecipeLike], str]:
        """Return the name for the image of a recipe, which is built where it is needed."""
        ...


class RuntimeLike(Sessions, Protocol):
    """An owner of sessions with the operations that a server process needs."""

    @property
    def pools(self) -> PoolState:
        """The sandboxes made ahead, in numbers."""
        ...

    def ask_engine(self) -> None:
        """Check that an engine answers now. Raises EngineError."""
        ...

    def close_all(self) -> None:
        """Close every session."""
        ...

    def close_pools(self) -> None:
        """Remove unused sandboxes made ahead."""
        ...

    def stop(self) -> None:
        """Start no more sandboxes: pending starts fail at once, and waits for removals are short."""
        ...

    def settle(self) -> None:
        """Wait until the engine has removed what was closed before."""
        ...

    def sweep(self) -> Sequence[Container]:
        """Remove the sandboxes of processes that are gone; return them."""
        ...
