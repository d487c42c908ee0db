"""The stream of an executed program as a sandbox's stdio: against a server of a real protocol on a real socket."""

from __future__ import annotations

import contextlib
import json
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
from websockets.http11 import Request
from websockets.server import ServerProtocol

from agent_tools.engines.kubernetes import stdio as module
from agent_tools.engines.kubernetes.api import Api, ApiRefused
from agent_tools.engines.kubernetes.cluster import Cluster
from agent_tools.engines.kubernetes.exec_channels import PROTOCOLS
from agent_tools.engines.kubernetes.stdio import ExecStdio
from agent_tools.errors import EngineError, EngineUnavailable
from tests.unit.engines.kubernetes.specs import cluster_at
from tests.waiting import until

PATIENCE = 60.0  # seconds


class Server:
    """One connection of an API server. `heard` is what came on stdin, `opcodes` all that came."""

    def __init__(self, tls: ssl.SSLContext | None = None, greeting: bytes = b"") -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.protocol = ServerProtocol(subprotocols=PROTOCOLS)  # type: ignore[arg-type]
        self.heard = bytearray()
        self.opcodes: list[Opcode] = []
        self.connection: socket.socket | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self.request: Request | None = None
        self._tls = tls
        self._greeting = greeting
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
                    if isinstance(event, Request):
                        self.request = event
                        self.protocol.send_response(self.protocol.accept(event))
                        if self._greeting:
                            self.protocol.send_binary(self._greeting)
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


@contextlib.contextmanager
def opened(cluster: Cluster, timeout: float = 10) -> Iterator[ExecStdio]:
    api = Api(cluster, timeout)
    try:
        stdio = ExecStdio(api, "/exec", {"command": ["a", "b"]}, timeout)
        yield stdio
        stdio.close()
    finally:
        api.close()


@pytest.fixture
def stdio(server: Server) -> Iterator[ExecStdio]:
    with opened(cluster_at(f"http://127.0.0.1:{server.port}", token="x")) as stdio:
        yield stdio


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
    stdio.check()
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


def _open(cluster: Cluster, timeout: float = 10) -> None:
    with opened(cluster, timeout):
        pass


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[Cluster]:
    """An API server that reads one request and gives this answer."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            while not asked.endswith(b"\r\n\r\n"):
                asked.extend(connection.recv(65_536))
            connection.sendall(answer)

    asked = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield cluster_at(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join(PATIENCE)


def test_the_request_has_the_command_and_the_credentials(server: Server, stdio: ExecStdio) -> None:
    assert server.request
    assert server.request.path == "/exec?command=a&command=b"
    assert server.request.headers["Authorization"] == "Bearer x"


def test_bytes_that_come_with_the_handshake_are_heard() -> None:
    server = Server(greeting=b"\1first")
    with opened(cluster_at(f"http://127.0.0.1:{server.port}")) as stdio:
        assert received(stdio, 5) == b"first"
        assert stdio.receive() is None
    server.close()


@pytest.mark.parametrize("head", ["403 Forbidden", "404 Not Found", "500 Internal Server Error"])
def test_a_refusal_is_told_with_the_servers_words(head: str) -> None:
    body = json.dumps({"message": "no\nway", "reason": "Forbidden"}).encode()
    answer = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with answering(answer) as cluster, pytest.raises(ApiRefused, match="no way") as refused:
        _open(cluster)
    assert refused.value.status == int(head[:3])


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"x" * 200_000,
    ],
)
def test_what_is_no_such_server_is_told(answer: bytes) -> None:
    with answering(answer) as cluster, pytest.raises(EngineError, match=r"is not a Kubernetes|No Kubernetes"):
        _open(cluster)


def test_a_server_that_hangs_up_at_once_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        with pytest.raises(EngineError, match="No Kubernetes API server answers"):
            _open(cluster_at(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        thread.join()


def test_a_server_that_says_nothing_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(EngineUnavailable, match="No Kubernetes API server answers"),
    ):
        _open(cluster_at(f"http://127.0.0.1:{listening.getsockname()[1]}"), 0.2)


def test_no_server_is_told() -> None:
    with pytest.raises(EngineUnavailable, match="No Kubernetes API server answers"):
        _open(cluster_at("http://127.0.0.1:1"))


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
    cluster = cluster_at(f"https://127.0.0.1:{server.port}", authorities=certificate, server_name="kubernetes")
    with opened(cluster) as stdio:
        data = os.urandom(1 << 20)
        at = 0
        while at < len(data):
            at += stdio.send(data[at:])
            select.select([], [stdio], [], PATIENCE)
        until(lambda: bytes(server.heard) == data)
        server.say(b"\1" + data[:300_000])
        assert received(stdio, 300_000) == data[:300_000]
    server.close()


def test_it_speaks_to_nobody_else(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(context)
    with pytest.raises(EngineUnavailable, match=r"(?i)certificate"):
        _open(cluster_at(f"https://127.0.0.1:{server.port}", server_name="kubernetes"))
    server.close()
