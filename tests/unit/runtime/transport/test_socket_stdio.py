"""A socket in the place of a sandbox's stdio."""

import socket

from agent_tools.runtime.transport.socket_stdio import SocketStdio


def test_it_never_waits_and_tells_the_end() -> None:
    ours, theirs = socket.socketpair()
    stdio = SocketStdio(ours)
    assert stdio.fileno() == ours.fileno()
    assert stdio.receive() is None
    theirs.send(b"a")
    assert stdio.receive() == b"a"
    while stdio.send(bytes(2**16)):
        pass
    theirs.close()
    assert stdio.receive() == b""
    stdio.close()
    stdio.close()
    stdio.hang_up()
    assert stdio.fileno() == -1


def test_a_hang_up_is_seen_by_both() -> None:
    ours, theirs = socket.socketpair()
    stdio = SocketStdio(ours)
    with theirs:
        stdio.hang_up()
        assert stdio.receive() == b""
        assert theirs.recv(1) == b""
    stdio.close()
