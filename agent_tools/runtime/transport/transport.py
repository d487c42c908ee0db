"""The two ways from the host to a sandbox: mounted unix sockets, or the sandbox's own stdin and stdout.

A transport is made before its sandbox and closed after it, which ends the sandbox.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal, Union

from agent_tools.engines.engine import Stdio
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.oci_runtime import shares_kernel
from agent_tools.errors import EngineError
from agent_tools.guest.wire.sockets import pair
from agent_tools.guest.wire.words import SocketOrder, channels
from agent_tools.machine.machine import IS_LINUX
from agent_tools.runtime.transport.datagram_pair import datagram_pair
from agent_tools.runtime.transport.lifeline import Lifeline, Listener
from agent_tools.runtime.transport.relay import Relay
from agent_tools.runtime.transport.run_dir import RunDir

TransportName = Literal["auto", "sockets", "stdio"]
StillRuns = Callable[[], bool]


def choose(wanted: TransportName, guest: Guest, isolation: Isolation) -> Transport:
    """Make the transport asked for, or the fastest that works with this engine and OCI runtime.

    Raises:
        EngineError: it needs Linux, which this machine does not have.
    """
    if wanted == "sockets" and not IS_LINUX:
        raise EngineError("transport='sockets' needs Linux on this side, too; say 'stdio', or leave it at 'auto'.")
    can_share = guest.shares_sockets and shares_kernel(isolation, guest.runtimes)
    use_sockets = wanted == "sockets" or (wanted == "auto" and can_share)
    return SocketTransport() if use_sockets else StdioTransport()


class SocketTransport:
    """Unix sockets: one in a folder that is mounted, the rest passed over it as open descriptors."""

    def __init__(self) -> None:
        with ExitStack() as undo:
            run_dir = RunDir()
            undo.callback(run_dir.remove)
            self.run_dir = run_dir.mounted
            """The folder that the sandbox must have mounted."""
            self._listener = Listener(run_dir.init_socket)
            undo.callback(self._listener.close)
            self._undo = undo.pop_all()

    def await_guest(self, stdio: Stdio | None, deadline: float, still_runs: StillRuns) -> Lifeline | None:
        """Wait until PID 1 connects; None when the deadline passes or `still_runs` says that the sandbox ended."""
        lifeline = self._listener.accept(deadline, still_runs)
        if lifeline:
            self._undo.callback(lifeline.close)
        return lifeline

    def open(self, order: SocketOrder, lifeline: Lifeline) -> list[socket.socket] | None:
        """Make pairs of sockets and pass the guest's ends on with an order; return ours, None if it cannot be sent."""
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
    """Everything over the sandbox's stdin and stdout, which a relay in the event loop reads and writes."""

    run_dir = None

    def __init__(self) -> None:
        ours, self._words = datagram_pair()
        self._lifeline = Lifeline(ours)
        self._relay: Relay | None = None

    def await_guest(self, stdio: Stdio | None, deadline: float, still_runs: StillRuns) -> Lifeline | None:
        """Wait until PID 1 says that it is ready; None as for sockets."""
        assert stdio is not None
        try:
            self._relay = Relay(stdio, self._words, self._lifeline.note_lost)
        except BaseException:
            stdio.close()
            raise
        return self._lifeline if self._relay.await_ready(deadline, still_runs) else None

    def open(self, order: SocketOrder, lifeline: Lifeline) -> list[socket.socket] | None:
        """Add new channels to the relay; the guest makes the sockets on its side. Returns as for sockets."""
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


Transport = Union[SocketTransport, StdioTransport]
