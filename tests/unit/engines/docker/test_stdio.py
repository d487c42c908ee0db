"""The engine's stream format taken apart, and what holds it let go of."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.engines.docker.attached_stdio import AttachedStdio

STDOUT, STDERR = 1, 2


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


class Attached:
    """Stands for what the SDK gives: a file object around a socket. `engine` is the other end."""

    def __init__(self) -> None:
        self.engine, self._sock = socket.socketpair()
        self._response = self._sock  # which the SDK leaves to be closed, with the file objects around the socket
        self.released = 0
        self.stdio = AttachedStdio(self, self.release)

    def release(self) -> None:
        self.released += 1

    def close(self) -> None:
        self.stdio.close()
        self.engine.close()


@pytest.fixture
def attached() -> Iterator[Attached]:
    attached = Attached()
    yield attached
    attached.close()


def read_all(stdio: AttachedStdio) -> bytes:
    found = bytearray()
    while data := stdio.receive():
        found += data
    return bytes(found)


def test_stdout_comes_out_and_stderr_is_dropped(attached: Attached) -> None:
    attached.engine.send(frame(STDOUT, b"one ") + frame(STDERR, b"noise") + frame(STDOUT, b"") + frame(STDOUT, b"two"))
    assert read_all(attached.stdio) == b"one two"
    assert attached.stdio.receive() is None


@given(
    frames=st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=40)), max_size=10),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=10),
)
def test_frames_cut_anywhere_give_the_same(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    attached = Attached()
    try:
        data = b"".join(frame(stream, payload) for stream, payload in frames)
        found, at, turn = bytearray(), 0, 0
        while at < len(data):
            size = cuts[turn % len(cuts)]
            attached.engine.send(data[at : at + size])
            found += attached.stdio.receive() or b""
            at, turn = at + size, turn + 1
        assert bytes(found) == b"".join(payload for stream, payload in frames if stream == STDOUT)
        assert attached.stdio.receive() is None
    finally:
        attached.close()


def test_the_end_is_no_bytes(attached: Attached) -> None:
    attached.engine.send(frame(STDOUT, b"last")[:-1])
    attached.engine.close()
    assert read_all(attached.stdio) == b"las"
    assert attached.stdio.receive() == b""


def test_input_goes_as_it_is_and_only_as_far_as_there_is_room(attached: Attached) -> None:
    assert attached.stdio.send(b"plain") == 5
    assert attached.engine.recv(100) == b"plain"
    sent = 0
    while size := attached.stdio.send(bytes(1 << 20)):
        sent += size
    assert 0 < sent < 1 << 24


def test_an_engine_that_hung_up_is_an_error_to_send_to(attached: Attached) -> None:
    attached.engine.close()
    with pytest.raises(OSError):
        attached.stdio.send(b"x")


def test_closing_hangs_up_and_releases_once(attached: Attached) -> None:
    attached.stdio.close()
    attached.stdio.close()
    assert attached.engine.recv(1) == b""
    assert attached.released == 1
    assert attached.stdio.fileno() == -1
    assert attached.stdio.receive() == b""


def test_a_forked_child_lets_go_and_the_parent_goes_on(attached: Attached) -> None:
    pid = os.fork()
    if pid == 0:
        attached.stdio.close()
        os._exit(attached.released)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    attached.engine.send(frame(STDOUT, b"here"))
    assert attached.stdio.receive() == b"here"


def test_an_unknown_way_of_attaching_is_an_error() -> None:
    with pytest.raises(OSError, match="in an unknown way"):
        AttachedStdio(SimpleNamespace(), lambda: None)


# -- over an ssh process --------------------------------------------------------------------------------------------

ECHO = "import os\nwhile data := os.read(0, 65536):\n    os.write(1, data)"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)"


class OverSsh(socket.socket):
    """Stands for the SDK's socket that is really a process."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self.proc = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_an_ssh_process_is_spoken_to_over_its_pipes_and_ends_with_them() -> None:
    over = OverSsh(ECHO)
    stdio = AttachedStdio(over, lambda: None)
    os.set_blocking(stdio.fileno(), True)
    assert stdio.send(frame(STDOUT, b"echo")) == 12
    assert stdio.receive() == b"echo"
    stdio.close()
    stdio.close()
    assert over.proc.returncode is not None
    assert over.fileno() == -1


def test_an_ssh_process_that_will_not_end_is_killed() -> None:
    over = OverSsh(STUBBORN)
    assert over.proc.stdout
    over.proc.stdout.readline()
    AttachedStdio(over, lambda: None).close()
    assert over.proc.returncode == -9


def test_a_forked_child_leaves_the_ssh_process_to_its_parent() -> None:
    over = OverSsh(ECHO)
    stdio = AttachedStdio(over, lambda: None)
    pid = os.fork()
    if pid == 0:
        stdio.close()
        os._exit(0)
    os.waitpid(pid, 0)
    os.set_blocking(stdio.fileno(), True)
    stdio.send(frame(STDOUT, b"here"))
    assert stdio.receive() == b"here"
    stdio.close()
