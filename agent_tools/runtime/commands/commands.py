"""The commands of one sandbox: starts, limits and ends them."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from agent_tools.errors import InvalidParams, SandboxGone, SessionBusy
from agent_tools.guest.wire.commands import Spec
from agent_tools.guest.wire.framing import TooLarge
from agent_tools.guest.wire.sockets import await_any
from agent_tools.limits import MIB, Limits
from agent_tools.machine.event_loop import READ, WRITE, WatchedDescriptors, join, leave
from agent_tools.machine.rounds import rounds
from agent_tools.results.commands import CommandResult, OnOutput
from agent_tools.runtime.commands.process import CHUNK_BYTES, LOST, Drive, Process, terminal_size

CHECK_SECONDS = 0.25  # seconds between two checks whether a command was cancelled or is overdue
CLOSED = "the sandbox was closed"
CANCELLED = "it was cancelled"


@dataclass(frozen=True)
class Request:
    """A requested command; `agent_tools.sandbox.Sandbox.run_command` documents the fields.

    Raises:
        InvalidParams: a value is unusable.
    """

    command: str | Sequence[str]
    stdin: bytes | BinaryIO | None = None
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    timeout: float | None = None
    max_output: int = 10 * MIB
    terminal: tuple[int, int] | None = None

    def spec(self, limits: Limits) -> Spec:
        """Return the request as a message for the guest."""
        return Spec(
            _argv(self.command),
            _text("cwd", self.cwd),
            {_name(name): _text(f"env[{name!r}]", value) for name, value in self.env.items()},
            self.timeout,
            limits.command_grace,
            self.stdin is not None or self.terminal is not None,
            self.terminal and terminal_size(self.terminal),
        )


class Commands:
    """Starts the commands of one sandbox.

    `connect` returns a socket for a command, or None if the sandbox accepts none; `is_gone` tells whether the sandbox
    has ended; `resume` continues stopped processes in the sandbox.
    """

    def __init__(
        self,
        limits: Limits,
        connect: Callable[[], socket.socket | None],
        is_gone: Callable[[], bool],
        resume: Callable[[], object] = lambda: None,
    ) -> None:
        self._limits = limits
        self._connect = connect
        self._is_gone = is_gone
        self._resume = resume
        self._turns = threading.BoundedSemaphore(int(limits.max_commands))
        self._running: set[Process] = set()

    @property
    def are_running(self) -> bool:
        """True while a command runs."""
        return bool(self._running)

    def run(self, request: Request, on_output: OnOutput | None, cancelled: threading.Event) -> CommandResult:
        """Run a command to its end.

        Raises:
            InvalidParams: the request is unusable.
            SandboxGone: the sandbox ended before the command did.
            SessionBusy: too many other commands ran during the whole wait.
        """
        process = self._run(request, on_output, cancelled)
        # the process to run it had just been killed
        if process.reason == LOST and not process.pid and not self._is_gone():
            process = self._run(request, on_output, cancelled)
        if process.reason == CLOSED or (process.reason == LOST and self._is_gone()):
            failure = SandboxGone("The sandbox ended while a command ran in it.")
            failure.has_begun = True
            raise failure
        return process.result()

    def _run(self, request: Request, on_output: OnOutput | None, cancelled: threading.Event) -> Process:
        process = self._start(replace(request, stdin=request.stdin or None), cancelled)
        process.on_output, process.cancelled = on_output, cancelled
        if cancelled.is_set():  # before anything of it is sent
            process.kill(CANCELLED)
        if request.stdin and not isinstance(request.stdin, bytes):
            feed = threading.Thread(target=_feed, args=(process, request.stdin), name="agent-tools-stdin", daemon=True)
            feed.start()  # the thread may wait in a read for ever, as at a terminal
        else:
            process.close_stdin()
        try:
            self._drive(process)
        except KeyboardInterrupt:
            process.signal(signal.SIGINT)
            self._drive(process, time.monotonic() + self._limits.command_grace)
            raise
        finally:
            process.kill()
        return process

    def _drive(self, process: Process, deadline: float = math.inf) -> None:
        """Advance a command until it ends, or until a time (monotonic seconds)."""
        while not process.is_over and time.monotonic() < deadline:
            _await(process)
            process.advance()
            process.look_at_clock()
            if process.cancelled and process.cancelled.is_set():
                self.cancel(process.cancelled)

    def start(self, request: Request) -> Process:
        """Start a command in the background. Errors as for `run`."""
        process = self._start(request, threading.Event())
        BackgroundCommand(process)
        return process

    def cancel(self, cancelled: threading.Event) -> None:
        """Kill the foreground command that was started with this event."""
        for process in list(self._running):
            if process.cancelled is cancelled:
                process.kill(CANCELLED)

    def close(self, reason: str = CLOSED) -> None:
        """Kill all commands."""
        for process in list(self._running):
            process.kill(reason)

    def _start(self, request: Request, cancelled: threading.Event) -> Process:
        """Return a command that starts when it is driven; one that is cancelled before its turn is over already."""
        spec = request.spec(self._limits)
        if not self._has_turn(request.timeout or self._limits.timeout, cancelled):
            process = Process(socket.socket(), spec, request.max_output)
            process.kill(CANCELLED)
            return process
        try:
            stdin = request.stdin if isinstance(request.stdin, bytes) else b""
            process = Process(self._link(), spec, request.max_output, stdin)
        except BaseException as exc:
            self._turns.release()
            if isinstance(exc, TooLarge):
                raise InvalidParams(f"{exc}. Pass data by stdin or as a file.") from exc
            raise
        self._running.add(process)
        process.set_drive(Drive(resume=self._resume))
        process.when_over(lambda: self._release(process))
        return process

    def _has_turn(self, seconds: float, cancelled: threading.Event) -> bool:
        """Wait for a turn; return False if the command is cancelled before."""
        until = time.monotonic() + seconds
        while not cancelled.is_set():
            left = until - time.monotonic()
            if self._turns.acquire(timeout=max(0.0, min(CHECK_SECONDS, left))):
                return True
            if left <= 0:
                most = self._limits.max_commands
                raise SessionBusy(f"{most:,} commands run in this sandbox already (max_commands). Wait for one to end.")
        return False

    def _link(self) -> socket.socket:
        link = self._connect()
        if link is None:
            raise SandboxGone("The sandbox has ended; start another one.")
        return link

    def _release(self, process: Process) -> None:
        if process in self._running:
            self._running.discard(process)
            self._turns.release()


class BackgroundCommand:
    """Advances a background command in the process's event loop (machine/event_loop.py), until it ends."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lock = threading.RLock()
        try:
            self._loop = join(self)
        except RuntimeError:  # no thread can be started
            process.kill()
            raise
        self._watched = WatchedDescriptors(self._loop)
        if process.deadline is not None:
            rounds().add(self)
        process.set_drive(replace(process.drive, rouse=self.watch, forget=self._forget))
        process.when_over(self._end)
        self.watch()

    def watch(self) -> None:
        """Watch the socket for the events that the command waits for now. For any thread."""
        with self._lock:
            events = (0 if self._process.is_ahead else READ) | (WRITE if self._process.has_more_to_say else 0)
            if not self._process.is_over:
                self._watched.want({self._process.fileno(): events} if events else {}, self)

    def advance(self, ready: set[int]) -> bool:
        """Advance the command. Called in the loop's thread."""
        self._process.advance()
        self.watch()
        return False

    def fail(self) -> None:
        """Kill the command."""
        self._process.kill("it could not be driven")

    def is_due(self) -> bool:
        """Return whether the command is past its time limit."""
        return self._process.is_late

    def check(self) -> None:
        """End a command that is past its time limit."""
        self._process.look_at_clock()

    def _forget(self) -> None:
        """Stop watching: the socket is about to be closed."""
        with self._lock:
            self._watched.forget_all()

    def _end(self) -> None:
        rounds().remove(self)
        leave(self._loop, self)


def _feed(process: Process, source: BinaryIO) -> None:
    """Copy a file to the stdin of a command as it is read, then close stdin.

    Nothing is read before the command runs: a command that never ran may be started once more, with the whole file.
    """
    if not process.has_begun():
        return
    read = getattr(source, "read1", source.read)  # the available bytes, without waiting for a full block
    try:
        while data := read(CHUNK_BYTES):
            process.write_stdin(data)
    except (OSError, ValueError):  # the command has ended, or the file is closed
        return
    finally:
        process.close_stdin()


def _await(process: Process) -> None:
    """Wait until a command can be advanced, or its limits must be checked."""
    if (descriptor := process.fileno()) >= 0:
        await_any([descriptor], [descriptor] if process.has_more_to_say else [], CHECK_SECONDS)


def _argv(command: object) -> tuple[str, ...] | str:
    if isinstance(command, str):
        return _text("command", command)
    if not isinstance(command, Sequence) or isinstance(command, (bytes, bytearray)) or not command:
        raise InvalidParams(f"command={command!r:.80} is not usable: give a text for the shell, or a list of texts.")
    return tuple(_text("command", part) for part in command)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise InvalidParams(f"env has an unusable name {name!r:.80}.")
    return name


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidParams(f"{what} is not usable: give text without NUL characters.")
    return value
