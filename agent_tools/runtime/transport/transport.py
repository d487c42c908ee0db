"""The two ways from the host to a sandbox: mounted unix sockets, or the sandbox's own stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Protocol

from agent_tools.engines.engine import Guest, Isolation, Stdio
from agent_tools.errors import EngineError
from agent_tools.guest.wire.sockets import pair
from agent_tools.guest.wire.words import SocketOrder, channels
from agent_tools.machine.machine import IS_LINUX
from agent_tools.machine.owner import Owner, private_base
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.transport.lifeline import Lifeline, Listener, words_pair
from agent_tools.runtime.transport.relay import Relay

TransportName = Literal["auto", "sockets", "stdio"]
_SHARED_KERNEL = (None, "runc", "crun", "youki")  # OCI runtimes under which host and guest can share a unix socket
StillRuns = Callable[[], bool]


class Transport(Protocol):
    """Made before the sandbox and closed after it."""

    run_dir: Path | None
    """The folder that the sandbox must have mounted; None if it is spoken to over stdio."""

    def await_guest(self, stdio: Stdio | None, deadline: float, still_runs: StillRuns) -> Lifeline | None:
        """Wait for PID 1; None when the deadline passes or `still_runs` says that the sandbox ended."""
        ...

    def open(self, order: SocketOrder, lifeline: Lifeline) -> list[socket.socket] | None:
        """Send an order with fresh sockets for the guest; return our ends, None if it cannot be sent."""
        ...

    def close(self) -> None:
        """Release everything, which ends the sandbox."""
        ...


def choose(wanted: TransportName, guest: Guest, isolation: Isolation) -> Transport:
    """Make the transport asked for, or the fastest that works with this engine and OCI runtime.

    Raises:
        EngineError: it needs Linux, which this machine does not have.
    """
    if wanted == "sockets" and not IS_LINUX:
        raise EngineError("transport='sockets' needs Linux on this side, too; say 'stdio', or leave it at 'auto'.")
    can_share = guest.shares_sockets and isolation.runtime in _SHARED_KERNEL
    use_sockets = wanted == "sockets" or (wanted == "auto" and can_share)
    return SocketTransport() if use_sockets else StdioTransport()


class SocketTransport:
    """Unix sockets: one in a folder that is mounted, the rest passed over it as open descriptors."""

    def __init__(self) -> None:
        with ExitStack() as undo:
            run_dir = RunDir()
            undo.callback(run_dir.remove)
            self.run_dir: Path | None = run_dir.mounted
            self._listener = Listener(run_dir.init_socket)
            undo.callback(self._listener.close)
            self._undo = undo.pop_all()

    def await_guest(self, stdio: Stdio | None, deadline: float, still_runs: StillRuns) -> Lifeline | None:
        """Wait until PID 1 connects."""
        lifeline = self._listener.accept(deadline, still_runs)
        if lifeline:
            self._undo.callback(lifeline.close)
        return lifeline

    def open(self, order: SocketOrder, lifeline: Lifeline) -> list[socket.socket] | None:
        """Make pairs of sockets and pass the guest's ends on."""
        with ExitStack() as theirs, ExitStack() as undo:
            pairs = [pair() for _ in range(order.sockets)]
            ours = [undo.enter_context(end) for end, _ in pairs]
            descriptors = [theirs.enter_context(end).fileno() for _, end in pairs]
            if not lifeline.send(order, descriptors):
                return None
            undo.pop_all()
        return ours

    def close(self) -> None:
        """Hang up and delete the folder."""
        self._undo.close()


class StdioTransport:
    """Everything over the sandbox's stdin and stdout; a thread carries it."""

    run_dir: Path | None = None

    def __init__(self) -> None:
        ours, self._words = words_pair()
        self._lifeline = Lifeline(ours)
        self._relay: Relay | None = None

    def await_guest(self, stdio: Stdio | None, deadline: float, still_runs: StillRuns) -> Lifeline | None:
        """Wait until PID 1 says that it is ready."""
        assert stdio is not None
        self._relay = Relay(stdio, self._words)
        return self._lifeline if self._relay.await_ready(deadline, still_runs) else None

    def open(self, order: SocketOrder, lifeline: Lifeline) -> list[socket.socket] | None:
        """Have the relay carry new channels; the guest makes the sockets at its side."""
        assert self._relay is not None
        ours = []
        for channel in channels(order):
            end, other = socket.socketpair()
            self._relay.carry(channel, other)
            ours.append(end)
        if lifeline.send(order):
            return ours
        for end in ours:
            end.close()
        return None

    def close(self) -> None:
        """Hang up."""
        self._lifeline.close()
        if self._relay:
            self._relay.close()
        with contextlib.suppress(OSError):
            self._words.close()


# The private directory of one sandbox on the host, of which the guest sees one socket, read-only.
#
#     <runtime dir>/<pid>-<start time>-<random>/      0700
#         guest/                                      mounted read-only as /run/kernel
#             init.sock                               the host listens; PID 1 connects once, then it is unlinked
#
# All other sockets are made in pairs on this side; the guest gets its ends as open descriptors, over the lifeline. So
# it can neither plant nor replace anything that the host opens.


MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its terminator


class RunDir:
    """Makes the directory; `remove` deletes it."""

    def __init__(self) -> None:
        self.path = private_base() / f"{Owner.current().token}-{secrets.token_hex(4)}"
        if len(os.fsencode(self.path)) + len("/guest/init.sock") > MAX_SOCKET_PATH:
            raise EngineError(
                f"{self.path} is too long for a socket path; set AGENT_TOOLS_RUN_DIR to a shorter folder."
            )
        self.path.mkdir(mode=0o700)
        self.mounted.mkdir()
        self.mounted.chmod(0o755)

    @property
    def mounted(self) -> Path:
        """The part the guest sees."""
        return self.path / "guest"

    @property
    def init_socket(self) -> Path:
        """The path on which the host listens for PID 1."""
        return self.mounted / "init.sock"

    def remove(self) -> None:
        """Delete the directory."""
        remove_tree(self.path)


# A socket in the place of a sandbox's stdin and stdout.


READ_SIZE = 256 * 1024


class SocketStdio:
    """Implements the Stdio protocol on a connected stream socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._socket.fileno()

    def writer(self) -> int:
        """Return the same descriptor."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return what has come, b'' at the end, None when there is nothing yet."""
        try:
            return self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, data: bytes | bytearray) -> int:
        """Send what can be sent; return the number of bytes."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def hang_up(self) -> None:
        """Have whoever reads it see its end; for any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()
