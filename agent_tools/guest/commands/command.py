"""One command of the sandbox: a process in a session of its own, with its three streams and its time limit.

Theory of operation
    What the process prints is read only while the host takes it (MAX_OUT), and what the host sends for its stdin is
    granted anew only once the process has taken it: the pipes' own back-pressure does the rest. When the process
    ends, what it had written by then is in the pipes and goes out before the end is told. A child that it left in the
    background may hold the pipes open: they are read on and dropped, so that it neither waits nor breaks.

    A terminal ends for whoever reads it once no process has it open, and closing the reading end sends SIGHUP to the
    session's leader. A process may close its streams and live on, if only for the moment before it exits. So the
    process's end of the terminal stays open here, too, until the process was reaped.
"""

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ..processes import Family, family, kill_tree
from ..wire import commands as wire
from ..wire.commands import CommandError, Ended, How, Input, Printed, Resize, Signal, Spec, Started, StreamName, Taken
from ..wire.waiting import await_input
from . import launch

MAX_OUT = 256 * 1024  # bytes waiting for the host, from which on nothing is read from the process
CHUNK = 64 * 1024
END_OF_TRANSMISSION = b"\x04"  # what ends the input of a terminal
TERMINAL_SECONDS = 0.05  # how long the last output of a terminal is waited for where a child still has it
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Watch(Protocol):
    """Whoever waits for descriptors."""

    def want(self, descriptor: int, events: int, then: Callable[[int, int], object]) -> None:
        """Call `then` with the descriptor and the events whenever one of them is there; 0 for none any more."""
        ...


class Command:
    """Begins with its socket; the first frame says what to run."""

    def __init__(self, link: socket.socket, watch: Watch, work_dir: str) -> None:
        link.setblocking(False)
        self.link = link
        self.watch = watch
        self.work_dir = work_dir
        self.reader = wire.orders()
        self.out = bytearray()
        self.pid = 0
        self.has_ended = False
        self.is_closed = False
        self.timed_out = False
        self.alarms: list[tuple[float, int]] = []
        self.family: Family = {}  # at its time limit
        self.stdin = -1
        self.pending = bytearray()
        self.is_input_over = False
        self.is_terminal = False
        self.held = -1  # the process's end of its terminal
        self.outputs: dict[int, StreamName] = {}
        self.look()

    # -- the host -----------------------------------------------------------------------------------------------------

    def on_link(self, _descriptor: int, events: int) -> None:
        """Move what can be moved between the host and this command."""
        try:
            if events & WRITE:
                del self.out[: self.link.send(self.out)]
            if events & READ:
                data = self.link.recv(CHUNK)
                if not data:
                    return self.hang_up()
                for order in self.reader.feed(data):
                    self.obey(order)
        except BlockingIOError:
            pass
        except (OSError, CommandError):
            return self.hang_up()
        if self.has_ended and not self.out:
            return self.close()
        return self.look()

    def obey(self, order: wire.Order) -> None:
        """Carry out one order of the host."""
        match order:
            case Spec() if not self.pid and not self.has_ended:
                self.start(order)
            case Input(data):
                self.pending += data
                self.is_input_over = self.is_input_over or not data
                self.feed()
            case Signal(number) if self.is_running:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, number)
            case Resize(rows, columns) if self.is_terminal and self.stdin >= 0:
                launch.resize(self.stdin, rows, columns)

    def hang_up(self) -> None:
        """End the command, because the host has gone or says what is not the protocol."""
        self.kill()
        self.close()

    def close(self) -> None:
        """Let go of the host. What a child in the background still prints is dropped from now on."""
        if self.is_closed:
            return
        self.is_closed = True
        self.watch.want(self.link.fileno(), 0, self.on_link)
        self.link.close()
        self.close_stdin()
        self.close_terminal()
        for descriptor in self.outputs:
            self.watch.want(descriptor, READ, self.drop)

    def look(self) -> None:
        """Wait for what this command can go on with."""
        if self.is_closed:
            return
        self.watch.want(self.link.fileno(), READ | (WRITE if self.out else 0), self.on_link)
        has_room = len(self.out) < MAX_OUT
        for descriptor in self.outputs:
            self.watch.want(descriptor, READ if has_room and not self.has_ended else 0, self.on_output)
        if self.stdin >= 0 and not self.is_terminal:
            self.watch.want(self.stdin, WRITE if self.pending else 0, self.on_stdin)

    # -- the process --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True from its start to its end."""
        return self.pid > 0 and not self.has_ended

    def start(self, spec: Spec) -> None:
        """Run the command, or tell why it cannot be run."""
        folder = os.path.join(self.work_dir, spec.cwd)
        try:
            self.pid, self.stdin, self.outputs, self.held = launch.start(spec, folder)
        except OSError as exc:
            how: How = "no folder" if exc.filename == folder else "no program"
            return self.tell_end(Ended(how, min(exc.errno or errno.EINVAL, 255)))
        except ValueError:  # a NUL in an argument
            return self.tell_end(Ended("no program", errno.EINVAL))
        self.is_terminal = spec.terminal is not None
        if spec.timeout is not None:
            at = time.monotonic() + spec.timeout
            self.alarms = [(at, signal.SIGTERM), (at + spec.grace, signal.SIGKILL)]
        self.say(Started(self.pid))
        return None

    def ring(self, now: float) -> None:
        """Ask the command to end at its time limit, and end it some time later."""
        while self.alarms and self.alarms[0][0] <= now:
            _, number = self.alarms.pop(0)
            self.timed_out = True
            if number == signal.SIGKILL:
                self.kill()
            else:
                self.family = family(self.pid)
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the command with all of its session; its end is told once it is reaped."""
        if self.is_running:
            kill_tree(self.pid, self.family)

    def end(self, status: int) -> None:
        """Tell the host how the process ended, after all that it had printed."""
        self.close_terminal()
        for descriptor, stream in self.outputs.items():
            for data in _rest_of_terminal(descriptor) if self.is_terminal else _rest_of_pipe(descriptor):
                self.out += wire.write_event(Printed(stream, data))
        code = os.waitstatus_to_exitcode(status)
        self.tell_end(Ended("signal", -code, self.timed_out) if code < 0 else Ended("code", code, self.timed_out))

    def tell_end(self, ended: Ended) -> None:
        """Note that there is nothing more to come."""
        self.has_ended = True
        self.alarms = []
        self.close_stdin()
        self.say(ended)

    def say(self, event: wire.Event) -> None:
        """Tell the host, as soon as it listens."""
        self.out += wire.write_event(event)
        self.look()

    # -- its streams --------------------------------------------------------------------------------------------------

    def on_output(self, descriptor: int, _events: int) -> None:
        """Pass on what the process has printed."""
        data = _read(descriptor, CHUNK)
        if data:
            self.say(Printed(self.outputs[descriptor], data))
        elif data is not None:
            self.close_output(descriptor)

    def drop(self, descriptor: int, _events: int) -> None:
        """Read on for nobody."""
        if _read(descriptor, CHUNK) == b"":
            self.close_output(descriptor)

    def close_output(self, descriptor: int) -> None:
        """Let go of a stream that is at its end."""
        self.watch.want(descriptor, 0, self.drop)
        self.outputs.pop(descriptor, None)
        if descriptor == self.stdin:  # a terminal
            self.stdin = -1
        os.close(descriptor)

    def on_stdin(self, _descriptor: int, _events: int) -> None:
        """Go on with the input."""
        self.feed()
        self.look()

    def feed(self) -> None:
        """Write of the input what the process takes, and grant the host as much again."""
        if self.stdin < 0:
            self.pending.clear()  # nobody reads it; the host may go on
            return
        taken = _write(self.stdin, self.pending)
        if taken:
            del self.pending[:taken]
            self.say(Taken(taken))
        if self.is_input_over and not self.pending:
            if self.is_terminal:
                self.is_input_over = False
                _write(self.stdin, END_OF_TRANSMISSION)
            else:
                self.close_stdin()

    def close_stdin(self) -> None:
        """End the process's input."""
        if self.stdin >= 0 and not self.is_terminal:
            self.watch.want(self.stdin, 0, self.on_stdin)
            os.close(self.stdin)
            self.stdin = -1

    def close_terminal(self) -> None:
        """Let the terminal end with the processes that still have it."""
        if self.held >= 0:
            os.close(self.held)
            self.held = -1


def _rest_of_pipe(descriptor: int) -> Iterator[bytes]:
    """Read what lies in a pipe now, and not what others may write meanwhile."""
    left = 0
    with contextlib.suppress(OSError):
        left = int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    while left > 0 and (data := _read(descriptor, min(left, CHUNK))):
        left -= len(data)
        yield data


def _rest_of_terminal(descriptor: int) -> Iterator[bytes]:
    """Read on to a terminal's end, which comes once nobody has it; what was written last may take a moment."""
    deadline = time.monotonic() + TERMINAL_SECONDS
    while time.monotonic() < deadline and await_input(descriptor, TERMINAL_SECONDS):
        data = _read(descriptor, CHUNK)
        if not data:
            return
        yield data


def _read(descriptor: int, most: int) -> bytes | None:
    """Return what is there, b'' at its end, None when there is nothing yet."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None
    except OSError:  # of a terminal whose last process is gone
        return b""


def _write(descriptor: int, data: bytes | bytearray) -> int:
    """Write what is taken at once; a process that reads no more takes everything."""
    try:
        return os.write(descriptor, memoryview(data)[:CHUNK]) if data else 0
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)
