"""A session on another machine, with the interface of a local session.

Theory of operation
    The host has the session itself (leased_session.py). The caller has its run lock, work_dir and host functions, and
    remembers what was lost. No host is asked before the first use. A run is at most one message of the caller, which
    is never repeated:

    * The host does not answer, before or in the middle of a run: whether code was run is not known. `SessionLost` is
      raised, and so it is where the host does not know the session, which then says that nothing was run.
    * The next use places the session anew, and a run tells so first (`Restarted`). That is also what happens where the
      renewal of its lease found between two runs that it was lost.

    Where files are copied, those that changed here go before the run, and those that the code changed come after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO

from agent_tools.engines.engine import Container
from agent_tools.errors import InvalidParams, SandboxGone, SessionLost
from agent_tools.fleet.folder_sync import FolderExchange, SyncedFolder
from agent_tools.fleet.placement import HostFinder, Open
from agent_tools.fleet.protocol import PIECE_BYTES, CallMessage, HostLink, RemoteSpec, RunEnded
from agent_tools.guest.wire.commands import CommandPrinted
from agent_tools.guest.wire.frames import Screen
from agent_tools.limits import Limits
from agent_tools.machine.removal import empty_folder
from agent_tools.results.execution import CommandResult, Execution, FileInfo, Omitted, OnOutput, Output, finished
from agent_tools.results.variables import RestorePoint, VariablesReport
from agent_tools.runtime.commands.commands import Request
from agent_tools.runtime.commands.process import Process
from agent_tools.runtime.files.archives import Pieces
from agent_tools.runtime.host_calls.function import HostFunction, refuse_caller
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.runtime.host_calls.wire import MAX_UNREAD, Take
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.runtime.session.session import RunRecord
from agent_tools.runtime.stoppable import RunLock

# The files, commands and variables of a session on another machine.

Cancelling = Callable[[str, threading.Event], AbstractContextManager[None]]
"""Is around something that the session's `cancel` with this event ends."""


class RemoteFiles:
    """Files with the interface and errors of `GuestFiles`; large files are sent in pieces."""

    def __init__(self, reach: HostFinder, limits: Limits) -> None:
        self._reach = reach
        self._limits = limits

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes:
        """Return a file's bytes from `offset` on, at most `most` of them."""
        bound = self._limits.max_transfer_bytes
        wanted = bound + 1 if most is None else min(most, bound)
        data = bytearray()
        while True:
            size = min(PIECE_BYTES, wanted - len(data))
            piece = self._reach.ask("do", "files", "read", path, offset + len(data), size)
            data += piece
            if len(piece) < PIECE_BYTES or len(data) >= wanted:
                break
        if len(data) > bound:
            raise OSError(errno.EFBIG, f"larger than {bound:,} bytes (max_transfer_bytes)", path)
        return bytes(data)

    def write(self, path: str, data: bytes | BinaryIO, *, append: bool = False) -> None:
        """Replace a file, or append to it; parent folders are made."""
        for piece in in_pieces(data, self._limits.max_transfer_bytes, path):
            self._reach.ask("do", "files", "write", path, piece, {"append": append})
            append = True

    def scan(self, path: str) -> list[FileInfo]:
        """Return the entries of a folder, by name."""
        found: list[FileInfo] = self._reach.ask("do", "files", "scan", path)
        return found

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return one file or folder; with `follow`, the target of a link."""
        found: FileInfo = self._reach.ask("do", "files", "stat", path, {"follow": follow})
        return found

    def move(self, path: str, to: str) -> None:
        """Move or rename a file or folder."""
        self._reach.ask("do", "files", "move", path, to)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder with its contents."""
        self._reach.ask("do", "files", "remove", path, {"recursive": recursive})

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents."""
        self._reach.ask("do", "files", "make_dir", path)


class RemoteCommands:
    """Commands with the interface of `Commands`; only foreground ones."""

    def __init__(self, reach: HostFinder, cancelling: Cancelling) -> None:
        self._reach = reach
        self._cancelling = cancelling

    def run(self, request: Request, on_output: OnOutput | None, cancelled: threading.Event) -> CommandResult:
        """Run a command to its end. A file for its stdin is read completely before."""
        if request.stdin and not isinstance(request.stdin, bytes):
            request = replace(request, stdin=request.stdin.read())
        run = uuid.uuid4().hex
        with self._cancelling(run, cancelled):
            self._reach.refuse_closed()
            self._reach.placed()
            if cancelled.is_set():  # before there was a host to be told
                self._reach.tell("cancel", run)
            for item in self._reach.follow("command", run, request):
                match item:
                    case CommandPrinted(stream, data) if on_output:
                        on_output(stream, data)
                    case CommandResult():
                        return item
        raise SandboxGone("The sandbox ended while a command ran in it.")

    def start(self, request: Request) -> Process:
        """Raise InvalidParams: background commands are not supported on another machine."""
        raise InvalidParams(
            "A command in the background needs a sandbox of this machine; this one is on another. Use run_command, or "
            "let the shell start it: 'nohup ... >log 2>&1 &'."
        )


class RemoteVariables:
    """Variables with the interface of `SessionVariables`."""

    def __init__(self, reach: HostFinder) -> None:
        self._reach = reach

    def define(self, source: str) -> None:
        """Run code that leaves no trace but its definitions."""
        self._reach.ask("do", "variables", "define", source)

    def undo(self) -> None:
        """Restore the variables as they were before the last run."""
        self._reach.ask("do", "variables", "undo")

    def checkpoint(self) -> RestorePoint:
        """Save the variables as they are now, for `rollback`."""
        mark: RestorePoint = self._reach.ask("do", "variables", "checkpoint")
        return mark

    def rollback(self, mark: RestorePoint) -> None:
        """Restore the variables as they were at a checkpoint."""
        self._reach.ask("do", "variables", "rollback", mark)

    def save(self, path: str, most: int, write: Callable[[bytes], object], *, variables: bool) -> VariablesReport:
        """Write an archive of a folder, piece by piece; return a report on the variables."""
        return self._report(uuid.uuid4().hex, write, "save", path, most, variables)

    def load(self, path: str, archive: Pieces, *, variables: bool) -> VariablesReport:
        """Unpack an archive into a folder, set its variables, and return a report on them."""
        run = uuid.uuid4().hex
        sent = 0
        try:
            for piece in joined(archive):
                self._reach.ask("spool", run, sent, piece)
                sent += len(piece)
        except BaseException:
            self._reach.tell("drop", run)
            raise
        return self._report(run, bool, "load", path, variables)

    def _report(self, run: str, write: Callable[[bytes], object], what: str, *arguments: object) -> VariablesReport:
        for item in self._reach.follow(what, run, *arguments):
            if isinstance(item, VariablesReport):
                return item
            write(item)
        return VariablesReport(problem="the archive broke off")


def in_pieces(data: bytes | BinaryIO, most: float, path: str) -> Iterator[bytes]:
    """Yield data in pieces that fit into a message, at least one.

    Raises OSError if there are more than `most` bytes.
    """
    size = 0
    for number, piece in enumerate(_pieces(data)):
        size += len(piece)
        if size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes (max_transfer_bytes)", path)
        if piece or not number:
            yield piece


def _pieces(data: bytes | BinaryIO) -> Iterator[bytes]:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        yield data.read(PIECE_BYTES)
        while piece := data.read(PIECE_BYTES):
            yield piece
        return
    for at in range(0, max(1, len(data)), PIECE_BYTES):
        yield bytes(data[at : at + PIECE_BYTES])


def joined(chunks: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """Yield small pieces as larger ones, for a message each."""
    each = iter(chunks)
    while part := list(islice(each, 32)):
        yield b"".join(part)


class RemoteSession:
    """A session on another machine. Thread-safe; runs wait for each other.

    `open_` finds a host; `pass_over` is called with one that does not answer. Without `folder` no file is copied.
    """

    def __init__(
        self,
        spec: SessionSpec,
        remote: RemoteSpec,
        open_: Open,
        pass_over: Callable[[HostLink], object],
        folder: SyncedFolder | None,
    ) -> None:
        self.spec = spec
        self._has_files, self._exchange = folder is not None, FolderExchange(folder)
        self._reach = HostFinder(remote, open_, pass_over, self._exchange.begin_anew)
        self._calls = spec.host_calls if isinstance(spec.host_calls, HostCalls) else None
        self._lock = RunLock()
        self._runs: dict[str, threading.Event] = {}

    # -- code ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the sandbox on a host now; otherwise the first run does. Raises HostFull if all hosts are full."""
        with self._locked():
            self._reach.placed()

    def stream(
        self, code: str, timeout: float, cancelled: threading.Event | None = None
    ) -> Generator[Output, None, Execution]:
        """Run code and yield its outputs while it runs; the generator returns the settled whole.

        As `Session.stream`. It also raises HostFull, and SessionLost if the host is gone: the code may or may not have
        finished.
        """
        record, cancelled = RunRecord(), cancelled or threading.Event()
        with self._locked(cancelled) as has_lock:
            record.note_lock()
            if not has_lock:
                return record.execution()
            self._reach.placed()
            run = uuid.uuid4().hex
            record.start(self.spec)
            if lost := self._reach.take_lost():
                yield record.add(lost)
            with self.cancelling(run, cancelled):
                if not cancelled.is_set():
                    with closing(self._outputs(run, code, timeout, record, cancelled)) as outputs:
                        for output in outputs:
                            yield record.add(output)
            self._reach.refuse_closed_meanwhile()
        return record.execution()

    def run(self, code: str, timeout: float, cancelled: threading.Event | None = None) -> Execution:
        """Run code and return everything it produced; arguments as for `stream`."""
        return finished(self.stream(code, timeout, cancelled))

    def _outputs(
        self, run: str, code: str, timeout: float, record: RunRecord, cancelled: threading.Event
    ) -> Generator[Output, None, None]:
        """Yield the outputs of the code, with finished host calls among them."""
        files = self._exchange.sent(self._reach.ask, cancelled)
        if files is None:
            return
        items = self._reach.follow("code", run, code, timeout, files)
        if self._calls is None:
            yield from self._taken(items, record, None)
            return
        link, id_ = self._reach.placed()
        wire = RemoteCallWire(link, id_, run)
        self._calls.serve(wire)
        with self._calls.run(wire) as take_over:
            for output in self._taken(items, record, wire):
                yield from take_over()
                yield output
        yield from take_over()

    def _taken(self, items: Iterator[Any], record: RunRecord, wire: RemoteCallWire | None) -> Iterator[Output]:
        for item in items:
            match item:
                case CallMessage() if wire:
                    wire.hear(item)
                case RunEnded():
                    record.connections = item.connections, item.connections_left_out
                    if missing := self._exchange.fetched(item, self._reach.ask):
                        yield Omitted(missing)
                    record.replaced = self._exchange.replaced
                case CallMessage():
                    pass
                case _:
                    yield item

    def cancel(self, cancelled: threading.Event) -> None:
        """End the run or command with this event: waiting, starting or running. Variables stay."""
        cancelled.set()
        for run in [run for run, event in list(self._runs.items()) if event is cancelled]:
            self._reach.tell("cancel", run)

    # -- what else a session does -------------------------------------------------------------------------------------

    @property
    def files(self) -> RemoteFiles:
        """The files of its sandbox, as they are on the host."""
        return RemoteFiles(self._reach, self.spec.limits)

    @property
    def commands(self) -> RemoteCommands:
        """The commands of its sandbox."""
        return RemoteCommands(self._reach, self.cancelling)

    @property
    def variables(self) -> RemoteVariables:
        """The variables of its kernel."""
        return RemoteVariables(self._reach)

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; variables stay. Does nothing when nothing runs."""
        self._do("interrupt")

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables are gone, files stay. Running code ends as `Died`."""
        refuse_caller(self._calls)
        self._lock.refuse_owner()
        self._do("restart")
        self._reach.take_lost()

    def reset(self) -> None:
        """Remove the sandbox with its commands, and empty work_dir; the next use starts another sandbox."""
        refuse_caller(self._calls)
        self._lock.refuse_owner()
        self._do("reset")
        with self._locked():
            self._reach.take_lost()
            if self._has_files:
                empty_folder(self.spec.work_dir)
            self._exchange.begin_anew()

    def _do(self, method: str) -> None:
        """Call a method of the session on its host, if a host has it: a lost session has no code, and starts anew."""
        if self._reach.place:
            with contextlib.suppress(SessionLost):
                self._reach.ask("do", "session", method)

    def add_functions(self, functions: Mapping[str, HostFunction], prelude: str, *, others: bool = True) -> None:
        """Add functions of the caller, which `prelude` defines for the code, now and in later kernels.

        Without `others`, earlier functions are removed; their names stay defined.
        """
        with self._locked():
            assert self._calls is not None
            self._calls.add(functions, others=others)
            self._reach.remote = replace(self._reach.remote, prelude=prelude)
        if self._reach.place:
            self._reach.ask("do", "session", "add_functions", {}, prelude)

    def close(self) -> None:
        """End all code and remove the sandbox. Closing again, or in a forked child, does nothing."""
        if self._reach.close() and self._calls:
            self._calls.close()

    @property
    def is_alive(self) -> bool:
        """True while a host is known to have the session."""
        return self._reach.place is not None

    @property
    def is_busy(self) -> bool:
        """True while code is running."""
        return self._lock.is_locked

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._reach.is_closed

    @property
    def sandbox(self) -> Container | None:
        """The running sandbox: the host's name and the session's id there."""
        place = self._reach.place
        return Container(f"{place[0].name}/{place[1]}") if place else None

    # -- the host -----------------------------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[HostLink, str] | None:
        """The host that has it, and its id there."""
        return self._reach.place

    def note_lost(self, id_: str, why: str) -> None:
        """Record that the host has lost the session of this id: the next use finds another host, and reports it."""
        self._reach.note_lost(id_, why)

    @contextlib.contextmanager
    def cancelling(self, run: str, cancelled: threading.Event) -> Iterator[None]:
        """Register work that `cancel` with this event ends."""
        self._runs[run] = cancelled
        try:
            yield
        finally:
            del self._runs[run]

    @contextlib.contextmanager
    def _locked(self, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Lock the session; yields False, without the lock, if `cancelled` is set while waiting."""
        self._reach.refuse_closed()
        refuse_caller(self._calls)
        if not self._lock.acquire(cancelled):
            yield False
            return
        try:
            self._reach.refuse_closed()
            yield True
        finally:
            self._lock.release()


# The caller's half of host calls, in place of the kernel's socket on another machine.
#
# `HostCalls` works as with a local kernel; the code's messages come with the outputs of a run, and the answers go to
# the host as numbered orders.


class RemoteCallWire:
    """The wire of one run, as `HostCalls` uses a `CallWire`, and its clock. For any thread."""

    def __init__(self, link: HostLink, id_: str, run: str) -> None:
        self._link, self._id, self._run = link, id_, run
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._is_wanted = True
        self._given = self._taken = 0  # bytes of answers: sent, and known to be taken
        self._begin: Callable[[], asyncio.AbstractEventLoop]
        self._take: Take
        self._screen: Screen | None = None

    def start(self, begin: Callable[[], asyncio.AbstractEventLoop], take: Take, screen: Screen | None = None) -> None:
        """Pass each message that `screen` accepts to `take`, in the loop that `begin` returns."""
        self._begin, self._take, self._screen = begin, take, screen

    def hear(self, word: CallMessage) -> None:
        """Handle a message that came with the outputs."""
        self._begin().call_soon_threadsafe(self._heard, word)

    def _heard(self, word: CallMessage) -> None:
        match word.head:
            case {"op": "call", "id": int(number), "name": str(name)}:
                if self._screen and not self._screen(number, name, word.size):
                    return
            case {"op": "taken", "bytes": int(count)}:
                self._taken = max(self._taken, count)
                return
        self._take(dict(word.head), word.attachments, word.size)

    @property
    def is_crowded(self) -> bool:
        """True until the host reports that the code has read enough of the answers."""
        return self._given - self._taken > MAX_UNREAD

    def send(self, data: bytes) -> None:
        """Send the code an answer."""
        with self._lock:
            self._given += len(data)
        self._order("answer", bytes(data))

    def read_on(self, wanted: bool) -> None:
        """Order the host to continue or pause reading from the code."""
        if wanted != self._is_wanted:
            self._is_wanted = wanted
            self._order("read_on", wanted)

    def hold(self) -> None:
        """Let the run's time limit stand still."""
        self._order("hold", None)

    def go(self) -> None:
        """Let the run's time limit go on."""
        self._order("go", None)

    def close(self) -> None:
        """Do nothing: the host closes the socket itself."""

    def _order(self, what: str, data: Any) -> None:
        with self._lock:
            self._link.tell("order", self._id, self._run, next(self._numbers), what, data)
