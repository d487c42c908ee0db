"""Runs the commands of the sandbox, in one process without a kernel that PID 1 forks for the first command.

Theory of operation
    PID 1 sends it the socket of each command (wire/commands.py). It is the subreaper of all it started, so PID 1 can
    tell the descendants of commands from those of the kernel: replacing a kernel ends no command. When PID 1 hangs up,
    all commands are killed. One thread serves them, which never waits for a command or for the host.

    Each command runs in a session of its own. Its output is read only while the host takes it (MAX_OUT), and the host
    may send more stdin only once the process has taken what came: the pipes' own back-pressure does the rest. When the
    process ends, the rest of its output is in the pipes, and goes out before its end is reported. A child that it left
    in the background may keep the pipes open: they are read on and dropped, so that the child neither waits nor breaks.

    A terminal ends for its reader once no process has it open, and closing the reading end sends SIGHUP to the
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

from .command_start import resize, start
from .processes import Family, adopt_orphans, family, kill_tree
from .wire import commands as wire
from .wire.commands import (
    CommandEnded,
    CommandPrinted,
    How,
    Input,
    Resize,
    Signal,
    Spec,
    Started,
    Taken,
)
from .wire.framing import FrameError
from .wire.sockets import await_input
from .wire.words import StreamName

NO_ROOM = wire.write(CommandEnded("no_program", errno.EAGAIN))  # the answer to a command whose server cannot start


def serve(orders: socket.socket, work_dir: str) -> None:
    """Run the commands whose sockets PID 1 sends, until it closes the connection."""
    adopt_orphans()
    CommandServer(orders, work_dir).serve()


class CommandServer:
    """All commands of the sandbox. Each datagram of `orders` brings the socket of a command."""

    def __init__(self, orders: socket.socket, work_dir: str) -> None:
        self.orders = orders
        self.work_dir = work_dir
        self.is_open = True
        self.commands: list[Command] = []
        self.selector = selectors.DefaultSelector()
        self.watch = DescriptorWatch(self.selector)
        self.watch.want(orders.fileno(), selectors.EVENT_READ, self.accept)
        self.notice_children()

    def serve(self) -> None:
        """Serve all commands until PID 1 hangs up."""
        while self.is_open:
            for key, events in self.selector.select(self.timeout()):
                now = self.selector.get_map().get(key.fd)
                if now and now.data == key.data:  # else it was closed by one before it
                    key.data(key.fd, events)
            self.reap()
            self.ring()
            self.commands = [command for command in self.commands if not command.is_closed]
        for command in self.commands:
            command.kill()

    def notice_children(self) -> None:
        """Wake up whenever a child ends: by a signal, since not every runtime has pidfds."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which PID 1 ignores, and commands would inherit
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.watch.want(reader, selectors.EVENT_READ, lambda descriptor, _events: os.read(descriptor, 4096))

    def timeout(self) -> float | None:
        """Return the seconds until a command's next alarm; None if there is none."""
        due = [command.alarms[0][0] for command in self.commands if command.alarms]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def accept(self, _descriptor: int, _events: int) -> None:
        """Receive the socket of a command."""
        line, descriptors, _, _ = socket.recv_fds(self.orders, 1, 1, socket.MSG_CMSG_CLOEXEC)
        self.is_open = bool(line)
        for descriptor in descriptors:
            self.commands.append(Command(socket.socket(fileno=descriptor), self.watch, self.work_dir))

    def ring(self) -> None:
        """Ring the alarms of all commands."""
        for command in self.commands:
            command.ring(time.monotonic())

    def reap(self) -> None:
        """Reap ended children. One that ended at its time limit has its session killed before its pid is free."""
        while (ended := _ended_child()) is not None:
            command = next((each for each in self.commands if each.is_running and each.pid == ended), None)
            if command and command.timed_out:
                kill_tree(ended, command.family)
            _, status = os.waitpid(ended, 0)
            if command:
                command.end(status)


class DescriptorWatch:
    """Descriptors, each with the function to call when it is ready."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector

    def want(self, descriptor: int, events: int, then: Callable[[int, int], object]) -> None:
        """Call `then` with the descriptor and the events whenever one of them is there; stop it for 0 events."""
        try:
            key = self._selector.get_key(descriptor)
        except KeyError:
            if events:
                self._selector.register(descriptor, events, then)
            return
        if not events:
            self._selector.unregister(descriptor)
        elif key.events != events or key.data != then:
            self._selector.modify(descriptor, events, then)


def _ended_child() -> int | None:
    """Return the pid of a child that has ended, and leave it a zombie; None if there is none."""
    with contextlib.suppress(ChildProcessError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found.si_pid if found else None
    return None


MAX_OUT = 256 * 1024  # bytes waiting for the host, from which on nothing is read from the process
CHUNK_BYTES = 64 * 1024
END_OF_TRANSMISSION = b"\x04"  # hands over a line of a terminal that has no end yet; of an empty one it ends the input
LINE_ENDS = (b"\n", b"\r", END_OF_TRANSMISSION)
TERMINAL_SECONDS = 0.05  # to wait for the last output of a terminal that a child still has
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Command:
    """A command from its socket on; the first frame says what to run."""

    def __init__(self, link: socket.socket, watch: DescriptorWatch, work_dir: str) -> None:
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
        self.is_in_line = False  # the terminal's input, whose last line has no end yet
        self.held = -1  # the process's end of its terminal, -1 for none
        self.outputs: dict[int, StreamName] = {}
        self.look()

    # -- the host -----------------------------------------------------------------------------------------------------

    def on_link(self, _descriptor: int, events: int) -> None:
        """Transfer data between the host and this command without waiting."""
        try:
            if events & WRITE:
                del self.out[: self.link.send(self.out)]
            if events & READ:
                data = self.link.recv(CHUNK_BYTES)
                if not data:
                    return self.hang_up()
                for order in self.reader.feed(data):
                    self.obey(order)
        except BlockingIOError:
            pass
        except (OSError, FrameError):
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
                self.take_input(data)
            case Signal(number) if self.is_running:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, number)
            case Resize(rows, columns) if self.is_terminal and self.stdin >= 0:
                resize(self.stdin, rows, columns)

    def hang_up(self) -> None:
        """End the command: the host has closed the socket, or broke the protocol."""
        self.kill()
        self.close()

    def close(self) -> None:
        """Close the socket. Output of children in the background is dropped from now on."""
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
        """Watch the descriptors that this command can go on with."""
        if self.is_closed:
            return
        self.watch.want(self.link.fileno(), READ | (WRITE if self.out else 0), self.on_link)
        has_room = len(self.out) < MAX_OUT
        for descriptor in self.outputs:
            events = READ if has_room else 0
            if self.pending and descriptor == self.stdin:  # a terminal
                events |= WRITE
            self.watch.want(descriptor, 0 if self.has_ended else events, self.on_output)
        if self.stdin >= 0 and not self.is_terminal:
            self.watch.want(self.stdin, WRITE if self.pending else 0, self.on_stdin)

    # -- the process --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True from its start to its end."""
        return self.pid > 0 and not self.has_ended

    def start(self, spec: Spec) -> None:
        """Start the process, or report why it cannot start."""
        folder = os.path.join(self.work_dir, spec.cwd)
        try:
            self.pid, self.stdin, self.outputs, self.held = start(spec, folder)
        except OSError as exc:
            how: How = "no_folder" if exc.filename == folder else "no_program"
            return self.report_end(CommandEnded(how, min(exc.errno or errno.EINVAL, 255)))
        except ValueError:  # a NUL in an argument
            return self.report_end(CommandEnded("no_program", errno.EINVAL))
        self.is_terminal = spec.terminal is not None
        if spec.timeout is not None:
            at = time.monotonic() + spec.timeout
            self.alarms = [(at, signal.SIGTERM), (at + spec.grace, signal.SIGKILL)]
        self.say(Started(self.pid))
        return None

    def ring(self, now: float) -> None:
        """Send SIGTERM at the time limit, and kill the command after its grace."""
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
        """Kill the command with its session; its end is reported once it is reaped."""
        if self.is_running:
            kill_tree(self.pid, self.family)

    def end(self, status: int) -> None:
        """Report how the process ended, after its last output."""
        self.close_terminal()
        for descriptor, stream in self.outputs.items():
            for data in _rest_of_terminal(descriptor) if self.is_terminal else _rest_of_pipe(descriptor):
                self.out += wire.write(CommandPrinted(stream, data))
        code = os.waitstatus_to_exitcode(status)
        self.report_end(
            CommandEnded("signal", -code, self.timed_out) if code < 0 else CommandEnded("code", code, self.timed_out)
        )

    def report_end(self, ended: CommandEnded) -> None:
        """Report the end: nothing follows."""
        self.has_ended = True
        self.alarms = []
        self.close_stdin()
        self.say(ended)

    def say(self, event: wire.Event) -> None:
        """Send an event as soon as the host takes it."""
        self.out += wire.write(event)
        self.look()

    # -- its streams --------------------------------------------------------------------------------------------------

    def on_output(self, descriptor: int, events: int) -> None:
        """Send output of the process to the host; continue to write the input of a terminal."""
        if events & WRITE:
            self.on_stdin(descriptor, events)
        data = _read(descriptor, CHUNK_BYTES) if events & READ else None
        if data:
            self.say(CommandPrinted(self.outputs[descriptor], data))
        elif data is not None:
            self.close_output(descriptor)

    def drop(self, descriptor: int, _events: int) -> None:
        """Read output and drop it."""
        if _read(descriptor, CHUNK_BYTES) == b"":
            self.close_output(descriptor)

    def close_output(self, descriptor: int) -> None:
        """Close a stream that is at its end."""
        self.watch.want(descriptor, 0, self.drop)
        self.outputs.pop(descriptor, None)
        if descriptor == self.stdin:  # a terminal
            self.stdin = -1
        os.close(descriptor)

    def on_stdin(self, _descriptor: int, _events: int) -> None:
        """Continue to write input."""
        self.feed()
        self.look()

    def take_input(self, data: bytes) -> None:
        """Write bytes to stdin; b'' ends it.

        A line that was erased in a terminal counts as begun: its end may end the next program's input as well.
        """
        if self.is_terminal:
            data = data or END_OF_TRANSMISSION * (2 if self.is_in_line else 1)
            self.is_in_line = not data.endswith(LINE_ENDS)
        self.is_input_over = self.is_input_over or not data
        self.pending += data
        self.feed()

    def feed(self) -> None:
        """Write as much input as the process reads, and grant the host as many bytes."""
        if self.stdin < 0:
            self.pending.clear()  # the process does not read it; the host may go on
            return
        taken = _write(self.stdin, self.pending)
        if taken:
            del self.pending[:taken]
            self.say(Taken(taken))
        if self.is_input_over and not self.pending:
            self.close_stdin()

    def close_stdin(self) -> None:
        """End the process's input."""
        if self.stdin >= 0 and not self.is_terminal:
            self.watch.want(self.stdin, 0, self.on_stdin)
            os.close(self.stdin)
            self.stdin = -1

    def close_terminal(self) -> None:
        """Close our copy of the process's end of the terminal."""
        if self.held >= 0:
            os.close(self.held)
            self.held = -1


def _rest_of_pipe(descriptor: int) -> Iterator[bytes]:
    """Read the bytes that are in a pipe now, not those written during the call."""
    left = 0
    with contextlib.suppress(OSError):
        left = int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
    while left > 0 and (data := _read(descriptor, min(left, CHUNK_BYTES))):
        left -= len(data)
        yield data


def _rest_of_terminal(descriptor: int) -> Iterator[bytes]:
    """Read to a terminal's end, which comes once no process has it; the last bytes may take a moment."""
    deadline = time.monotonic() + TERMINAL_SECONDS
    while time.monotonic() < deadline and await_input(descriptor, TERMINAL_SECONDS):
        data = _read(descriptor, CHUNK_BYTES)
        if not data:
            return
        yield data


def _read(descriptor: int, most: int) -> bytes | None:
    """Return available bytes; b'' at the end, None if there are none yet."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None
    except OSError:  # of a terminal whose last process is gone
        return b""


def _write(descriptor: int, data: bytes | bytearray) -> int:
    """Write without waiting, and return the number of bytes; all of them if the process does not read any more."""
    try:
        return os.write(descriptor, memoryview(data)[:CHUNK_BYTES]) if data else 0
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)
