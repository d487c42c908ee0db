"""Conversations of this process with an engine: over few connections, whatever and however much it asks."""

from __future__ import annotations

import io
import json
import os
import socket
import socketserver
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from agent_tools.engines.docker.connection import DockerConnection, failed_step, translated
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import EngineUnavailable


class Engine(socketserver.ThreadingUnixStreamServer):
    """Knows every container, and counts who is connected. A request whose path ends in `wait` waits for the others."""

    daemon_threads = False

    def __init__(self, path: Path, at_once: int) -> None:
        self.connections = 0
        self.all_wait = threading.Barrier(at_once)
        self.pings_wait = threading.Barrier(1)
        super().__init__(str(path), Answers)

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client may hang up."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    server: Engine

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        if self.path.endswith("_ping"):
            self.server.pings_wait.wait(30)
        self._answer({"ApiVersion": "1.41", "Id": self.path})

    def do_POST(self) -> None:
        if "/images/" in self.path or "/build" in self.path:
            self._break_off()
        else:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.server.all_wait.wait(10)
            self._answer({"StatusCode": 0})

    def _break_off(self) -> None:
        """Answer as an engine that is stopped in the middle of its progress; a build's is behind a proxy."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = b'5\r\n{"sta\r\n0\r\n\r\n' if "/build" in self.path else b'30\r\n{"sta'
        self.wfile.write(b'11\r\n{"status":"good"}\r\n' + end)
        self.close_connection = True

    def _answer(self, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


AT_ONCE = 30


@pytest.fixture
def engine(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Engine(work_dir / "engine.sock", AT_ONCE) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{work_dir}/engine.sock")
        yield server
        server.shutdown()
        thread.join()


def test_one_connection_serves_the_urls_of_many_sandboxes(engine: Engine) -> None:
    connection = DockerConnection(timeout=5)
    asked = [connection.api().inspect_container(f"c{number}")["Id"] for number in range(40)]
    assert asked == [f"/v1.41/containers/c{number}/json" for number in range(40)]
    assert engine.connections == 2  # the first asked for the engine's version
    connection.api().close()


def test_long_requests_share_a_connection_of_their_own(engine: Engine) -> None:
    connection = DockerConnection(timeout=5)
    for number in range(5):
        assert connection.api(is_patient=True).inspect_container(f"c{number}")["Id"]
    assert connection.api(is_patient=True).timeout > connection.api().timeout
    assert engine.connections == 2  # the first asked for the engine's version
    connection.api(is_patient=True).close()


def test_requests_at_the_same_time_have_connections_of_their_own_and_leave_them_to_later_ones(engine: Engine) -> None:
    connection = DockerConnection(timeout=5)
    connection.api()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(3):
            list(threads.map(lambda number: connection.api().wait(f"c{number}"), range(AT_ONCE)))
    assert engine.connections == 1 + AT_ONCE
    connection.api().close()


def test_no_thread_waits_until_another_has_its_answer(engine: Engine) -> None:
    engine.pings_wait = threading.Barrier(4)  # an engine that answers none before it has heard all
    connection = DockerConnection(timeout=60)
    with ThreadPoolExecutor(4) as threads:
        clients = list(threads.map(lambda _: connection.api(), range(4)))
    assert len(set(map(id, clients))) == 1
    clients[0].close()


def test_requests_read_no_environment_which_other_threads_may_be_writing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = DockerConnection(timeout=5)
    connection.api()
    for reader in ("get_environ_proxies", "get_netrc_auth"):
        monkeypatch.setattr(requests.sessions, reader, lambda *_, **__: pytest.fail("it reads the environment"))
    assert connection.api().inspect_container("c")["Id"] == "/v1.41/containers/c/json"
    connection.api().close()


def test_an_engine_behind_a_proxy_is_asked_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine.example:2375")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as proxy:
        proxy.connections, proxy.pings_wait = 0, threading.Barrier(1)  # type: ignore[attr-defined]
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        api = DockerConnection(timeout=5).api()
        assert api.inspect_container("c")["Id"] == "http://engine.example:2375/v1.41/containers/c/json"
        api.close()
        proxy.shutdown()
        thread.join()


def test_no_socket_is_left_where_no_engine_answers(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{work_dir}/engine.sock")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(EngineUnavailable), translated():
            DockerConnection(timeout=5).api()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(EngineUnavailable), translated():
                DockerConnection(timeout=5).api()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("error", "log", "told"),
    [
        (
            "The command 'x' returned a non-zero code: 1",
            ["Step 1\n", "\x1b[91mERROR: No matching distribution\n\x1b[0m"],
            "ERROR: No matching distribution",
        ),
        (
            "The command 'x' returned a non-zero code: 100",
            ["Reading\nE: Unable to locate package no-such\n"],
            "E: Unable to locate package no-such",
        ),
        (
            "The command 'x' returned a non-zero code: 2\n",
            ["nothing of the kind\n"],
            "The command 'x' returned a non-zero code: 2",
        ),
        ("layer does not exist", ["ERROR: pip's resolver is unhappy\n"], "layer does not exist"),
    ],
)
def test_a_failed_build_is_told_by_what_its_step_printed(error: str, log: list[str], told: str) -> None:
    assert failed_step(error, log) == told


def test_an_engine_that_accepts_and_does_not_answer_is_called_busy(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(f"{work_dir}/engine.sock")
        busy.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{work_dir}/engine.sock")
        with pytest.raises(EngineUnavailable, match="does not answer: it may be busy"), translated():
            DockerConnection(timeout=1).api()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda engine: engine.pull("python:3"), id="pull"),
        pytest.param(lambda engine: engine.build(io.BytesIO(b"tar"), "agent-tools:1", {}), id="build"),
        pytest.param(lambda engine: engine.load_image(io.BytesIO(b"tar")), id="load"),
    ],
)
def test_an_engine_that_is_lost_in_the_middle_of_its_progress_is_unavailable(
    engine: Engine, stream: Callable[[DockerEngine], Iterator[str]]
) -> None:
    lines = stream(DockerEngine())
    next(lines)
    with pytest.raises(EngineUnavailable, match="No engine answers"):
        next(lines)
