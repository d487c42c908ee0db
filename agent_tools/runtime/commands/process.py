"""A command that runs in a sandbox, as the host sees it: what it printed, what it is told, and how it ended.

Theory of operation
    One socket is the command (guest/wire/commands.py). Whoever drives it calls `advance` when the socket is ready: the
    thread that waits for a command in the foreground, or one thread for all in the background. Nothing in here waits
    for the guest but `wait` and `write_stdin`, which are woken by whoever drives. What the guest says is bounded by the
    reader, kept up to `max_output`, and believed only as far as this one command goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import signal as signals
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import (
    MAX_FRAME,
    WINDOW,
    CommandEnded,
    CommandError,
    CommandPrinted,
    Input,
    Resize,
    Signal,
    Spec,
    Started,
    Taken,
)
from agent_tools.machine.event_loop import abandon_after_fork
from agent_tools.results.execution import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    SIGNALLED,
    TIMED_OUT,
    CommandOutput,
    CommandResult,
    Cursor,
    OnOutput,
)

CHUNK = 256 * 1024
MAX_WAITING = 1024 * 1024  # bytes of stdin that wait here; whoever writes more waits
OVERTIME = 2.0  # seconds beyond the guest's own limits after which a command is given up
LOST = "the process that runs the commands was ended by code in the sandbox"


@dataclass(frozen=True)
class Drive:
    """The functions that a command calls: those of the thread that drives it, and those of the sandbox."""

    rouse: Callable[[], None] = lambda: None
    """There is something new to send."""
    forget: Callable[[], None] = lambda: None
    """Its socket is about to be closed."""
    release: Callable[[], None] = lambda: None
    """It is over."""
    resume: Callable[[], object] = lambda: None
    """The processes of the sandbox that serve commands may have been stopped by code."""


class Process:
    """A command from its start to its end. Any thread may call any method."""

    def __init__(self, link: socket.socket, spec: Spec, max_output: int, stdin: bytes = b"") -> None:
        link.setblocking(False)
        self._link = link
        self._spec = spec
        self._reader = wire.events()
        self._changed = threading.Condition(threading.RLock())
        self._tails = {"stdout": Tail(max_output), "stderr": Tail(max_output)}
        self._outgoing = bytearray(wire.write_spec(spec))
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
        """The event by which its caller ends it, if there is one."""
        self.drive = Drive()
        self._watchers: dict[Callable[[], object], bool] = {}
        self._pace: int | None = None
        abandon_after_fork(self)

    # -- for its user -------------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """Return the exit code; None while the command runs."""
        return self.result().exit_code if self._is_over else None

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for its end, at most `timeout` seconds.

        Raises:
            TimeoutError: it still runs.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over, timeout):
                raise TimeoutError(f"The command still runs after {timeout:g} s.")
        return self.result()

    def read(self, cursor: tuple[int, int] = (0, 0), wait: float = 0.0) -> CommandOutput:
        """Return what it printed from a cursor on; if that is nothing, wait for more for so many seconds at most."""
        asked = Cursor(*cursor)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self.place != asked, wait)
            stdout, early = self._tails["stdout"].since(asked.stdout)
            stderr, late = self._tails["stderr"].since(asked.stderr)
            return CommandOutput(stdout, stderr, self.place, early + late)

    @contextlib.contextmanager
    def watched(self, changed: Callable[[], object]) -> Iterator[None]:
        """Call `changed` after each piece of output and at the end, in the thread that drives it; it must not wait."""
        self._watchers[changed] = True
        try:
            yield
        finally:
            self._watchers.pop(changed, None)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call `call` once at its end, in the thread that drives it; here, if it is over already. It must not wait."""

        def changed() -> None:
            if self._is_over and self._watchers.pop(changed, False):  # for one thread only
                call()

        self._watchers[changed] = True
        changed()

    def write_stdin(self, data: bytes, timeout: float | None = None) -> None:
        """Write to its stdin; wait, at most `timeout` seconds, while it does not read.

        Raises:
            BrokenPipeError: its stdin is closed, was not asked for, or the command has ended.
            TimeoutError: it did not read in time; what was not taken is not sent.
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
        """Pause it after about this many bytes of stdout since its start, until the next call of this method."""
        was_ahead, self._pace = self.is_ahead, most
        if was_ahead:
            self.drive.rouse()

    def signal(self, number: int) -> None:
        """Send a signal to its process group; nothing happens if it has ended.

        Raises:
            ValueError: there is no such signal.
        """
        self._order(Signal(signals.Signals(number)))

    def resize(self, rows: int, columns: int) -> None:
        """Resize the command's terminal."""
        self._order(Resize(rows, columns))

    def kill(self, reason: str = "") -> None:
        """Kill the command at once, with all processes of its session."""
        self._close(reason or "it was killed")
        self.drive.rouse()

    def result(self) -> CommandResult:
        """Return all there is so far; of a command that has ended, its result."""
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

    # -- for whoever drives it ----------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True once the command has ended and no more output will come."""
        return self._is_over

    @property
    def reason(self) -> str:
        """The reason why it was ended without its own doing, '' for any other end."""
        return self._reason

    @property
    def is_ahead(self) -> bool:
        """True if it has printed more than it may for now."""
        return self._pace is not None and self.place.stdout > self._pace

    @property
    def has_more_to_say(self) -> bool:
        """True if bytes wait for the socket to take them."""
        return bool(self._outgoing)

    @property
    def deadline(self) -> float | None:
        """The time by which the guest has ended it (monotonic seconds); None for a command without a limit."""
        if self._spec.timeout is None:
            return None
        return self._started + self._spec.timeout + self._spec.grace + OVERTIME

    @property
    def is_late(self) -> bool:
        """True if the guest has not ended it in its time."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 once it is over."""
        return self._link.fileno()

    def advance(self) -> None:
        """Move what can be moved, and take note of what came."""
        with self._changed:
            for event in self._received():
                self._take(event)  # what `on_output` raises is its caller's, an OSError too
            self._changed.notify_all()
        self._tell_watchers()

    def look_at_clock(self) -> None:
        """Give it up if the guest has not ended it in its time."""
        if self.is_late:
            self._is_overdue = True
            self._close("its time was up, and the sandbox did not end it")
            self.drive.resume()  # code may have stopped who is to end it

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited."""
        self._link.close()
        self._is_over = True

    # -- its parts ----------------------------------------------------------------------------------------------------

    def _received(self) -> Iterator[wire.Event]:
        """Send what can be sent, and yield what came."""
        try:
            self._send()
            data = self._link.recv(CHUNK)
            yield from self._reader.feed(data)
            if not data:
                self._close(LOST)
            self._send()
        except BlockingIOError:
            pass
        except (OSError, CommandError):
            self._close(LOST)

    def _order(self, order: Signal | Resize) -> None:
        with self._changed:
            if self._is_over:
                return
            self._outgoing += wire.write_order(order)
            self._send()
        self.drive.rouse()

    def _send(self) -> None:
        self._feed()
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing and not self._is_over:
                del self._outgoing[: self._link.send(self._outgoing)]
                self._feed()

    def _feed(self) -> None:
        """Turn input into frames, as far as the guest has granted it."""
        while self._window > 0 and len(self._outgoing) < MAX_FRAME:
            data = self._next_input(min(self._window, MAX_FRAME))
            if not data:
                break
            self._window -= len(data)
            self._outgoing += wire.write_order(Input(data))
        if self._is_input_over and not self._was_end_told and not self._input and not self._waiting:
            self._was_end_told = True
            self._outgoing += wire.write_order(Input(b""))

    def _next_input(self, most: int) -> bytes:
        """Take of the input that was there from the start, then of what was written since."""
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
                if self.on_output:
                    self.on_output(stream, data)
            case Taken(size):
                self._window = min(WINDOW, self._window + size)
            case Started(pid):
                self.pid = pid
            case CommandEnded():
                self._ended = event
                self._close("")

    def _close(self, reason: str) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over = True
            self._reason = reason
            self._duration = time.monotonic() - self._started
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
            self.drive.forget()
            self._link.close()
            self._changed.notify_all()
        self.drive.release()
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for changed in list(self._watchers):
            changed()


# The end of a command, in the words of a shell.


def exit_code(ended: CommandEnded | None, *, is_overdue: bool) -> int:
    """Return the exit code of a command; None: whoever ran it hung up."""
    if is_overdue or (ended and ended.timed_out):
        return TIMED_OUT
    if ended is None:
        return SIGNALLED + signal.SIGKILL
    if ended.how == "no program":
        return NOT_FOUND if ended.number == errno.ENOENT else NOT_EXECUTABLE
    return {"code": ended.number, "signal": SIGNALLED + ended.number, "no folder": NOT_FOUND}[ended.how]


def complaint(spec: Spec, ended: CommandEnded | None) -> str:
    """Return the line that says why a command could not be run; '' for one that ran."""
    if ended is None or ended.how in ("code", "signal"):
        return ""
    program = spec.argv if isinstance(spec.argv, str) else spec.argv[0]
    what = f"cwd {spec.cwd}" if ended.how == "no folder" else program
    return f"{what}: {os.strerror(ended.number)}\n"


# The output of a command, bounded: the last bytes of a stream, and the exact count of those before them.


SLACK = 256 * 1024  # bytes held beyond the bound, so that not every piece moves all that is kept


class Tail:
    """The last `most` bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._dropped = 0

    @property
    def total(self) -> int:
        """All bytes that came."""
        return self._dropped + len(self._kept)

    @property
    def omitted(self) -> int:
        """The bytes that are not kept."""
        return max(0, self.total - self._most)

    def add(self, data: bytes) -> None:
        """Take in what came next."""
        self._kept += data
        if len(self._kept) > self._most + SLACK:
            self._dropped += len(self._kept) - self._most
            del self._kept[: len(self._kept) - self._most]

    def since(self, place: int) -> tuple[bytes, int]:
        """Return what is kept of the bytes from a place on, and how many after it are not kept."""
        first = max(place, self.omitted)
        return bytes(self._kept[max(0, first - self._dropped) :]), first - place
