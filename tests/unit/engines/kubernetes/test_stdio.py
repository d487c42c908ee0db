"""The stream of an executed program as a sandbox's stdio: against a server of a real protocol on a real socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from agent_tools.engines.kubernetes import stdio as module
from agent_tools.engines.kubernetes.cluster import Cluster
from agent_tools.engines.kubernetes.stdio import PROTOCOLS, ExecStdio
from agent_tools.errors import EngineError, EngineUnavailable
from tests.waiting import until

PATIENCE = 60.0  # seconds


class Server:
    """One connection of an API server. `heard` is what came on stdin, `opcodes` all that came."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.protocol = ServerProtocol(subprotocols=PROTOCOLS)  # type: ignore[arg-type]
        self.heard = bytearray()
        self.opcodes: list[Opcode] = []
        self.connection: socket.socket | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self._tls = tls
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listening.accept()
            self.connection = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            while data := self.connection.recv(65_536):
                self.may_read.wait(PATIENCE)
                self.protocol.receive_data(data)
                for event in self.protocol.events_received():
                    if not hasattr(event, "opcode"):
                        self.protocol.send_response(self.protocol.accept(event))
                    else:
                        self.opcodes.append(event.opcode)
                        self.heard += event.data[1:] if event.opcode is Opcode.BINARY else b""
                self.flush()

    def say(self, message: bytes) -> None:
        self.protocol.send_binary(message)
        self.flush()

    def flush(self) -> None:
        assert self.connection
        self.connection.sendall(b"".join(self.protocol.data_to_send()))

    def close(self) -> None:
        self.may_read.set()
        for each in (self.connection, self.listening):
            if each:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._thread.join(PATIENCE)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def stdio(server: Server) -> Iterator[ExecStdio]:
    stdio = ExecStdio(Cluster(f"http://127.0.0.1:{server.port}", "a"), "/exec", 10)
    yield stdio
    stdio.close()


def received(stdio: ExecStdio, size: int) -> bytes:
    found = b""
    deadline = time.monotonic() + PATIENCE
    while len(found) < size and time.monotonic() < deadline:
        select.select([stdio], [], [], 1)
        data = stdio.receive()
        if data == b"":
            break
        found += data or b""
    return found


def test_bytes_cross_both_ways_and_the_end_is_one(server: Server, stdio: ExecStdio) -> None:
    assert stdio.receive() is None
    assert stdio.send(b"hello") == 5
    until(lambda: bytes(server.heard) == b"hello")
    server.say(b"\1" + b"x" * 300_000)
    assert received(stdio, 300_000) == b"x" * 300_000
    assert stdio.receive() is None
    server.say(b'\3{"status": "Failure", "message": "exit status 1"}')
    select.select([stdio], [], [], PATIENCE)
    assert stdio.receive() == b""
    assert stdio.last_words == "exit status 1"


def test_the_last_words_of_a_server_that_takes_no_answer_are_heard(server: Server, stdio: ExecStdio) -> None:
    server.protocol.send_binary(b"\1the last")
    server.protocol.send_ping(b"?")
    server.flush()
    stdio._socket.shutdown(socket.SHUT_WR)  # the pong finds nobody
    assert received(stdio, 8) == b"the last"
    assert stdio.receive() is None
    assert server.connection
    server.connection.shutdown(socket.SHUT_WR)
    assert select.select([stdio], [], [], PATIENCE)[0]
    assert stdio.receive() == b""


def test_small_frames_are_not_kept_back(stdio: ExecStdio) -> None:
    assert stdio._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_bytes_count_as_sent_when_all_of_their_frame_is(server: Server, stdio: ExecStdio) -> None:
    """Whoever sends watches for the socket only while it has something left: nothing may stay behind in here."""
    server.may_read.clear()
    data = bytes(range(256)) * 64 * 1024  # 16 MiB, more than the sockets hold
    at = 0
    while sent := stdio.send(data[at:]):
        at += sent
    assert 0 < at < len(data)
    assert stdio.send(data[at:]) == 0
    server.may_read.set()
    while at < len(data):
        select.select([], [stdio], [], PATIENCE)
        at += stdio.send(data[at:])
    assert stdio._out == b""
    until(lambda: len(server.heard) == len(data))
    assert bytes(server.heard) == data


def test_a_stream_that_is_idle_is_pinged(server: Server, stdio: ExecStdio, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not stdio.is_due()
    monkeypatch.setattr(module, "PING_SECONDS", 0.1)  # the rounds look twice a second
    until(lambda: server.opcodes.count(Opcode.PING) >= 2)
    assert stdio.receive() is None


def test_a_server_that_is_silent_for_long_has_ended(
    server: Server, stdio: ExecStdio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.0)
    stdio.look()
    select.select([stdio], [], [], PATIENCE)
    assert stdio.receive() == b""


def test_closing_says_so_and_may_be_done_twice(server: Server, stdio: ExecStdio) -> None:
    stdio.close()
    stdio.close()
    assert stdio.fileno() == -1
    assert stdio.receive() == b""
    until(lambda: Opcode.CLOSE in server.opcodes)


def test_a_forked_child_lets_go_without_a_word(server: Server, stdio: ExecStdio) -> None:
    pid = os.fork()
    if pid == 0:
        stdio.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert stdio.send(b"still here") == 10
    until(lambda: bytes(server.heard) == b"still here")
    assert Opcode.CLOSE not in server.opcodes


def test_a_server_that_hangs_up_at_once_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        with pytest.raises(EngineError, match=r"closed the connection|is not a Kubernetes|does not open an exec"):
            ExecStdio(Cluster(f"http://127.0.0.1:{listening.getsockname()[1]}", "a"), "/exec", 10)
        thread.join()


def test_a_server_that_says_nothing_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(EngineUnavailable, match="does not open an exec stream"),
    ):
        ExecStdio(Cluster(f"http://127.0.0.1:{listening.getsockname()[1]}", "a"), "/exec", 0.2)


def test_no_server_is_told() -> None:
    with pytest.raises(EngineUnavailable, match="No Kubernetes API server answers"):
        ExecStdio(Cluster("http://127.0.0.1:1", "a"), "/exec", 1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the name `kubernetes`, with its key behind it."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes"),
            *("-addext", "subjectAltName=DNS:kubernetes", "-keyout", str(path.with_suffix(".key")), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + path.with_suffix(".key").read_text())
    return path


def test_it_speaks_tls_with_the_cluster_it_trusts(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(context)
    cluster = Cluster(f"https://127.0.0.1:{server.port}", "a", str(certificate), server_name="kubernetes")
    stdio = ExecStdio(cluster, "/exec", 10)
    data = os.urandom(1 << 20)
    at = 0
    while at < len(data):
        at += stdio.send(data[at:])
        select.select([], [stdio], [], PATIENCE)
    until(lambda: bytes(server.heard) == data)
    server.say(b"\1" + data[:300_000])
    assert received(stdio, 300_000) == data[:300_000]
    stdio.close()
    server.close()


def test_it_speaks_to_nobody_else(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(context)
    with pytest.raises(EngineUnavailable, match=r"(?i)certificate"):
        ExecStdio(Cluster(f"https://127.0.0.1:{server.port}", "a", server_name="kubernetes"), "/exec", 10)
    server.close()
