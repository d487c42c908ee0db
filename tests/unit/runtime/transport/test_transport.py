"""Which way to a sandbox is taken when."""

from __future__ import annotations

import os

import pytest

from agent_tools.runtime.engine import Guest, Isolation
from agent_tools.runtime.transport.transport import SocketTransport, StdioTransport, TransportName, choose

ME = (os.getuid(), os.getgid())
CHOICES: list[tuple[TransportName, bool, bool, str | None, type]] = [
    # asked for, sockets are shared, files are shared, OCI runtime, what it is
    ("auto", True, True, None, SocketTransport),
    ("auto", True, True, "runc", SocketTransport),
    ("auto", True, True, "crun", SocketTransport),
    ("auto", True, True, "runsc", StdioTransport),
    ("auto", True, True, "kata", StdioTransport),
    ("auto", True, True, "of my own", StdioTransport),
    ("auto", False, True, None, StdioTransport),
    ("auto", False, False, None, StdioTransport),
    ("sockets", True, True, "runsc", SocketTransport),
    ("sockets", False, True, None, SocketTransport),
    ("stdio", True, True, None, StdioTransport),
    ("stdio", False, False, "kata", StdioTransport),
]


@pytest.mark.parametrize(("wanted", "sockets", "files", "runtime", "kind"), CHOICES)
def test_the_choice(wanted: TransportName, sockets: bool, files: bool, runtime: str | None, kind: type) -> None:
    guest = Guest(ME, ME, shares_sockets=sockets, shares_files=files)
    before = len(os.listdir("/proc/self/fd"))
    transport = choose(wanted, guest, Isolation(runtime=runtime))
    assert type(transport) is kind
    assert (transport.run_dir is None) == (kind is StdioTransport)
    transport.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_transport_that_never_met_its_guest_is_closed_twice() -> None:
    for transport in (SocketTransport(), StdioTransport()):
        transport.close()
        transport.close()
        assert not transport.link.send("kill")
