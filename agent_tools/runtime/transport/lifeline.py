"""The lifeline: one unix socket between this process and a sandbox's PID 1 (guest/wire/words.py has the words).

While it is open the sandbox lives; when this process ends, in whatever way, the engine's side of it sees end-of-file
and the sandbox ends itself. Its messages are bounded by the datagram size, and a false report can do no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_tools.guest.wire.lines import MAX_LINE
from agent_tools.guest.wire.sockets import await_hang_up, await_input
from agent_tools.guest.wire.words import Arm, Disarm, Interrupt, Order, Report, read_report, write
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.runtime.transport.datagram_pair import DatagramSocket

CHECK_SECONDS = 0.5  # seconds between two looks whether a sandbox that is starting still runs
READ_WITHIN = 1.0  # seconds that PID 1 may leave an order unread before the next run begins anyway
READ_CHECK_SECONDS = 0.0002  # seconds between two looks whether it has read it


class Lifeline:
    """The host's end, connected. `send` is for any thread, the rest for one at a time."""

    def __init__(self, connected: DatagramSocket) -> None:
        connected.setblocking(False)
        self._socket: DatagramSocket | None = connected
        self.is_armed = False
        """True while PID 1 has a time limit to enforce."""
        self._may_interrupt = False  # PID 1 may be about to send SIGINT
        self.lost = ""
        """How the way to the sandbox broke, as a clause; '' if it did not."""
        self.has_ended = False
        """True if PID 1 has closed the lifeline, or does not answer: the sandbox counts as gone."""
        abandon_after_fork(self)

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 once closed."""
        return self._socket.fileno() if self._socket else -1

    def send(self, order: Order, descriptors: Sequence[int] = ()) -> bool:
        """Send one order, with open descriptors; return False if it did not go out."""
        connected = self._socket
        if connected is None:
            return False
        self._may_interrupt |= isinstance(order, Interrupt)
        try:
            if descriptors and isinstance(connected, socket.socket):
                socket.send_fds(connected, [write(order)], list(descriptors))
            else:
                connected.send(write(order))
        except OSError:
            return False
        return True

    def arm(self, interrupt: float, kill: float) -> None:
        """Order PID 1 to interrupt the kernel in `interrupt` seconds, and to kill it `kill` seconds later."""
        self.is_armed = True
        self.send(Arm(interrupt, kill))

    def disarm(self) -> None:
        """Order PID 1 to forget the time limit, if it has one.

        An interrupt that it was about to send would reach the run that comes next, so that one waits until PID 1 has
        read the order. It need not do so over stdio, where PID 1 itself brings the kernel the next request.
        """
        if not self.is_armed:
            return
        self.is_armed = False
        self.send(Disarm())
        deadline = time.monotonic() + READ_WITHIN
        while self._may_interrupt and self._has_unread() and time.monotonic() < deadline:
            time.sleep(READ_CHECK_SECONDS)
        self._may_interrupt = False

    def _has_unread(self) -> bool:
        """Return whether there are orders in the mounted socket that PID 1 has not read."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            if isinstance(self._socket, socket.socket):
                return any(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)))
        return False

    def receive(self, most: int) -> list[Report]:
        """Return up to `most` available reports; unknown messages are dropped."""
        reports = []
        for _ in range(most):
            if (line := self._read()) is None:
                break
            if report := read_report(line):
                reports.append(report)
        return reports

    def is_hung_up(self, wait: float = 0.0) -> bool:
        """Return whether PID 1 closes the lifeline within `wait` seconds. Reads nothing, so any thread may call it."""
        descriptor = self.fileno()
        return descriptor < 0 or self.has_ended or await_hang_up(descriptor, wait)

    def note_lost(self, reason: str) -> None:
        """Record how the way to the sandbox broke."""
        self.lost = reason

    def mark_dead(self) -> None:
        """Treat the sandbox as ended: it does not answer any more."""
        self.has_ended = True

    def close(self) -> None:
        """Hang up, which ends the sandbox."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """In a forked child: close inherited descriptors."""
        self.close()

    def _read(self) -> bytes | None:
        """Read one line; None when there is none to read."""
        if self._socket is None or self.has_ended:
            return None
        try:
            line = self._socket.recv(MAX_LINE)
        except BlockingIOError:
            return None
        except OSError:
            line = b""
        self.has_ended = self.has_ended or not line
        return line or None


class Listener:
    """Waits on a path for PID 1, which connects once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        path.chmod(0o666)  # its directory is what keeps others out
        self._socket.listen(1)
        abandon_after_fork(self)

    def accept(self, deadline: float, still_runs: Callable[[], bool]) -> Lifeline | None:
        """Wait for PID 1; None when the deadline passes or `still_runs` says that the sandbox ended."""
        while time.monotonic() < deadline:
            if await_input(self._socket.fileno(), CHECK_SECONDS):
                connected, _ = self._socket.accept()
                self.close()
                return Lifeline(connected)
            if not still_runs():
                return None
        return None

    def close(self) -> None:
        """Stop listening and remove the path."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def abandon(self) -> None:
        """In a forked child: let go of what was inherited; the path is the parent's."""
        self._socket.close()
