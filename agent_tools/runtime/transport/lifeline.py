"""The lifeline: one unix socket between this process and a sandbox's PID 1 (the words are in guest/init.py).

While it is open the sandbox lives; when this process ends, in whatever way, the engine's side of it sees end-of-file
and the sandbox ends itself. What comes out of it is bounded by the datagram size and believed only as far as a wrong
word can do no harm.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_tools.runtime.after_fork import abandon_after_fork

MAX_WORDS = 4096  # bytes in one datagram


class Link:
    """Listens for PID 1, then exchanges words with it. `send` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        path.chmod(0o666)  # its directory is what keeps others out
        self._listener.listen(1)
        self._socket: socket.socket | None = None
        self._remember()

    @classmethod
    def of(cls, connected: socket.socket) -> Link:
        """A link over a SEQPACKET socket that is connected already."""
        link = cls.__new__(cls)
        link._listener, link._socket = None, connected
        connected.setblocking(False)
        link._remember()
        return link

    def _remember(self) -> None:
        self.is_closed_by_guest = False
        abandon_after_fork(self)

    def accept(self, deadline: float, still_runs: Callable[[], bool]) -> bool:
        """Wait for PID 1 to connect; False when the deadline passes or `still_runs` says that the sandbox ended."""
        assert self._listener is not None
        while time.monotonic() < deadline:
            if await_input((self._listener.fileno(),), 0.5):
                self._socket, _ = self._listener.accept()
                self._socket.setblocking(False)
                self._stop_listening()
                return True
            if not still_runs():
                return False
        return False

    @property
    def is_open(self) -> bool:
        """Whether words can still come."""
        return self._socket is not None and not self.is_closed_by_guest

    def fileno(self) -> int:
        """The descriptor to poll, -1 once closed."""
        return self._socket.fileno() if self._socket else -1

    def send(self, words: str, descriptors: Sequence[int] = ()) -> bool:
        """Send one order, with open descriptors; whether it went out (a guest that is gone is seen when receiving)."""
        connected = self._socket
        if connected is None:
            return False
        try:
            socket.send_fds(connected, [words.encode("ascii")], list(descriptors))
        except OSError:
            return False
        return True

    def receive(self) -> list[str] | None:
        """The next words, [] when the guest has hung up, None when there is nothing to read."""
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(MAX_WORDS)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self.is_closed_by_guest = self.is_closed_by_guest or not data
        return data.decode("ascii", "replace").split(maxsplit=2)

    def close(self) -> None:
        """Hang up, which ends the sandbox."""
        self._stop_listening()
        if self._socket:
            self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """In a forked child: let go of everything inherited."""
        for held in (self._listener, self._socket):
            if held:
                held.close()
        self._listener = self._socket = None

    def _stop_listening(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                self._path.unlink()


def await_input(descriptors: Sequence[int], wait: float) -> bool:
    """Whether one of them has something within so many seconds. By poll(2): select(2) ends at descriptor 1023."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(wait * 1000))
