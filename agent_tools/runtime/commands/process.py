"""The host's side of a command in a sandbox: its output, its input, and its end.

Theory of operation
    Each command has one socket (guest/wire/commands.py). A driver thread calls `advance` when the socket is ready: the
    thread that waits for a foreground command, or one thread for all background commands. Only `wait` and `write_stdin`
    wait for the guest; the driver wakes them. Messages of the guest are bounded by the reader, output is kept up to
    `max_output`, and the guest can affect only this command.
"""

from __future__ import annotations

import contextlib
import signal as signals
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent_tools.errors import InvalidParams
from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import (
    MAX_FRAME,
    WINDOW,
    CommandEnded,
    CommandPrinted,
    Input,
    Resize,
    Signal,
    Spec,
    Started,
    Taken,
)
from agent_tools.guest.wire.framing import FrameError
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.results.commands import CommandOutput, CommandResult, Cursor, OnOutput
from agent_tools.runtime.commands.exit_code import complaint, exit_code
from agent_tools.runtime.commands.tail import Tail

CHUNK_BYTES = 256 * 1024
MAX_WAITING = 1024 * 1024  # bytes of stdin that are buffered here; a writer of more waits
OVERTIME = 2.0  # seconds after the guest's own limits at which the host ends a command
LAST_READS = 16  # of CHUNK_BYTES, before a command counts as late: its reader may have been away, and not the guest
MOST_ROWS = 0xFFFF  # or columns, of a terminal
LOST = "the process that runs the commands was ended by code in the sandbox"


@dataclass(frozen=True)
class Drive:
    """Callbacks of a command to its driver thread and to the sandbox."""

    rouse: Callable[[], None] = lambda: None
    """There are new bytes to send."""
    forget: Callable[[], None] = lambda: None
    """The command's socket is about to be closed."""
    resume: Callable[[], object] = lambda: None
    """Code may have stopped the processes that serve commands: continue them."""


def terminal_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns of a terminal.

    Raises:
        InvalidParams: they are not two whole numbers of 16 bits.
    """
    if len(size) != 2 or not all(isinstance(each, int) and 0 <= each <= MOST_ROWS for each in size):
        raise InvalidParams(f"terminal={size!r:.80} is not usable: give rows and columns, up to {MOST_ROWS:,} each.")
    return size


class Process:
    """A command from its start to its end. Any thread may call any method."""

    def __init__(self, link: socket.socket, spec: Spec, max_output: int, stdin: bytes = b"") -> None:
        link.setblocking(False)
        self._link = link
        self._spec = spec
        self._reader = wire.events()
        self._changed = threading.Condition(threading.RLock())
        self._tails = {"stdout": Tail(max_output), "stderr": Tail(max_output)}
        self._outgoing = bytearray(wire.write(spec))
        self._input = memoryview(stdin)
        self._waiting = bytearray()
        self._window = WINDOW
        self._is_input_over = self._was_end_told = not spec.has_stdin
        self._ended: CommandEnded | None = None
        self._reason = ""
        self._is_over = False
        self._is_overdue = False
        self._started = time.monotonic()
        self._duration = 0.0
        self.pid = 0
        """The pid within the sandbox; 0 until the command runs."""
        self.on_output: OnOutput | None = None
        self.cancelled: threading.Event | None = None
        """The event by which the caller ends the command, or None."""
        self.drive = Drive()
        self._watchers: dict[Callable[[], object], bool] = {}
        self._endings: list[Callable[[], object]] = []
        self._telling = 0  # threads that call endings
        self._pace: int | None = None
        abandon_after_fork(self)

    # -- for its user -------------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """Return the exit code; None while the command runs."""
        return self.result().exit_code if self._is_over else None

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait up to `timeout` seconds for the command to end.

        Raises:
            TimeoutError: it still runs.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_settled, timeout):
                raise TimeoutError(f"The command still runs after {timeout:g} s.")
        return self.result()

    def has_begun(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until the command runs or has ended; return whether it ran."""
        with self._changed:
            self._changed.wait_for(lambda: self.pid or self._is_over, timeout)
            return self.pid > 0

    def read(self, cursor: tuple[int, int] = (0, 0), wait: float = 0.0) -> CommandOutput:
        """Return the output from a cursor on; wait up to `wait` seconds if there is none yet."""
        asked = Cursor(*cursor)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self.place != asked, wait)
            stdout, early = self._tails["stdout"].since(asked.stdout)
            stderr, late = self._tails["stderr"].since(asked.stderr)
            return CommandOutput(stdout, stderr, self.place, early + late)

    @contextlib.contextmanager
    def watched(self, changed: Callable[[], object]) -> Iterator[None]:
        """Call `changed` after each piece of output and at the end, in the driver thread; it must not wait."""
        self._watchers[changed] = True
        try:
            yield
        finally:
            self._watchers.pop(changed, None)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call `call` once at the end, in the driver thread, or here if the command has ended. It must not wait."""
        with self._changed:
            self._endings.append(call)
        self._tell_end()

    def write_stdin(self, data: bytes, timeout: float | None = None) -> None:
        """Write to stdin; wait up to `timeout` seconds while the command does not read.

        Raises:
            BrokenPipeError: stdin is closed, was not requested, or the command has ended.
            TimeoutError: it did not read in time; the rest is not sent.
        """
        rest = memoryview(data)
        deadline = None if timeout is None else time.monotonic() + timeout
        while rest:
            with self._changed:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._changed.wait_for(lambda: self._is_over or len(self._waiting) < MAX_WAITING, left):
                    raise TimeoutError("The command does not read its stdin.")
                if self._is_over or self._is_input_over:
                    raise BrokenPipeError("The command takes no input.")
                room = MAX_WAITING - len(self._waiting)
                self._waiting += rest[:room]
                rest = rest[room:]
                self._send()
            self.drive.rouse()

    def close_stdin(self) -> None:
        """Close stdin after everything that was written."""
        with self._changed:
            if self._is_input_over:
                return
            self._is_input_over = True
            self._send()
        self.drive.rouse()

    def pace(self, most: int) -> None:
        """Pause the command after about this many bytes of stdout since its start, until the next call of `pace`."""
        was_ahead, self._pace = self.is_ahead, most
        if was_ahead:
            self.drive.rouse()

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group; no effect if the command has ended.

        Raises:
            ValueError: there is no such signal.
        """
        self._order(Signal(signals.Signals(number)))

    def resize(self, rows: int, columns: int) -> None:
        """Resize the command's terminal.

        Raises:
            InvalidParams: no terminal has such a size.
        """
        self._order(Resize(*terminal_size((rows, columns))))

    def kill(self, reason: str = "") -> None:
        """Kill the command at once, with all processes of its session."""
        self._close(reason or "it was killed")
        self.drive.rouse()

    def result(self) -> CommandResult:
        """Return the result so far, or of an ended command the final one."""
        with self._changed:
            stdout, stderr = self._tails["stdout"], self._tails["stderr"]
            why_not = complaint(self._spec, self._ended)
            return CommandResult(
                exit_code(self._ended, is_overdue=self._is_overdue),
                stdout.since(stdout.omitted)[0],
                stderr.since(stderr.omitted)[0] + why_not.encode(),
                self._is_overdue or bool(self._ended and self._ended.timed_out),
                stdout.omitted,
                stderr.omitted,
                self._duration if self._is_over else time.monotonic() - self._started,
                why_not.strip() or self._reason,
            )

    @property
    def place(self) -> Cursor:
        """The end of the output so far."""
        return Cursor(self._tails["stdout"].total, self._tails["stderr"].total)

    # -- for the code that drives it ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the command has ended and no more output will come."""
        return self._is_over

    @property
    def reason(self) -> str:
        """Why the sandbox ended the command; '' if it ended by itself."""
        return self._reason

    @property
    def is_ahead(self) -> bool:
        """True if the command has printed more than `pace` allows."""
        return self._pace is not None and self.place.stdout > self._pace

    @property
    def has_more_to_say(self) -> bool:
        """True if bytes wait until the socket is writable."""
        return bool(self._outgoing)

    @property
    def deadline(self) -> float | None:
        """The time by which the guest ends the command (monotonic seconds); None without a limit."""
        if self._spec.timeout is None:
            return None
        return self._started + self._spec.timeout + self._spec.grace + OVERTIME

    @property
    def is_late(self) -> bool:
        """True if the guest has not ended it in its time."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def set_drive(self, drive: Drive) -> None:
        """Set the callbacks of a command until its end."""
        with self._changed:
            if not self._is_over:
                self.drive = drive

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 once the command has ended."""
        return self._link.fileno()

    def advance(self) -> bool:
        """Send and receive without waiting, and handle the received messages; return whether there were any."""
        with self._changed:
            events = []
            for event in self._received():
                self._take(event)
                events.append(event)
            self._changed.notify_all()
        for event in events:  # without the lock: what is called may wait for a thread that wants it
            if isinstance(event, CommandPrinted) and self.on_output:
                self.on_output(event.stream, event.data)  # its exceptions go to its caller, OSError too
        self._tell_end()
        self._tell_watchers()
        return bool(events)

    def look_at_clock(self) -> None:
        """End the command if the guest has not ended it in time, by all that it has said until now."""
        for _ in range(LAST_READS):
            if not self.is_late or self._is_over or not self.advance():
                break
        if self.is_late and not self._is_over:
            self._is_overdue = True
            resume = self.drive.resume
            self._close("it exceeded its time limit, and the sandbox did not end it")
            resume()  # code may have stopped the process that should end it

    def abandon(self) -> None:
        """In a forked child: close inherited descriptors."""
        self._link.close()
        self._is_over = True

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _received(self) -> Iterator[wire.Event]:
        """Send without waiting, and yield the received messages."""
        try:
            self._send()
            data = self._link.recv(CHUNK_BYTES)
            yield from self._reader.feed(data)
            if not data:
                self._end(LOST)
            self._send()
        except BlockingIOError:
            pass
        except (OSError, FrameError):
            self._end(LOST)

    def _order(self, order: Signal | Resize) -> None:
        with self._changed:
            if self._is_over:
                return
            self._outgoing += wire.write(order)
            self._send()
        self.drive.rouse()

    def _send(self) -> None:
        self._feed()
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing and not self._is_over:
                del self._outgoing[: self._link.send(self._outgoing)]
                self._feed()

    def _feed(self) -> None:
        """Convert input to frames, within the guest's window."""
        while self._window > 0 and len(self._outgoing) < MAX_FRAME:
            data = self._next_input(min(self._window, MAX_FRAME))
            if not data:
                break
            self._window -= len(data)
            self._outgoing += wire.write(Input(data))
        if self._is_input_over and not self._was_end_told and not self._input and not self._waiting:
            self._was_end_told = True
            self._outgoing += wire.write(Input(b""))

    def _next_input(self, most: int) -> bytes:
        """Take bytes from the initial input, then from later writes."""
        data = bytes(self._input[:most])
        if data:
            self._input = self._input[len(data) :]
            return data
        data = bytes(self._waiting[:most])
        del self._waiting[: len(data)]
        return data

    def _take(self, event: wire.Event) -> None:
        match event:
            case CommandPrinted(stream, data):
                self._tails[stream].add(data)
            case Taken(size):
                self._window = min(WINDOW, self._window + size)
            case Started(pid):
                self.pid = pid
            case CommandEnded():
                self._ended = event
                self._end("")

    def _close(self, reason: str) -> None:
        self._end(reason)
        self._tell_end()
        self._tell_watchers()

    def _end(self, reason: str) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._reason = reason
            self._duration = time.monotonic() - self._started
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)  # wakes waiting threads
            drive, self.drive = self.drive, Drive()  # its callbacks refer to the command: a cycle would keep the output
            drive.forget()
            self._link.close()
            self._changed.notify_all()

    def _tell_end(self) -> None:
        with self._changed:
            if not self._is_over:
                return
            endings, self._endings = self._endings, []
            self._telling += 1
        try:
            for call in endings:
                call()
        finally:
            with self._changed:
                self._telling -= 1
                self._changed.notify_all()

    def _is_settled(self) -> bool:
        return self._is_over and not self._endings and not self._telling

    def _tell_watchers(self) -> None:
        for changed in list(self._watchers):
            changed()
