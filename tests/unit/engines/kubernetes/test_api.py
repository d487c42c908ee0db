"""Watches of an API server that is slow, busy or silent: a double that answers as it is told, one way after another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_tools.engines.kubernetes.api import Api, ApiRefused
from agent_tools.engines.kubernetes.progress import progress_of
from agent_tools.engines.kubernetes.watch import await_start
from agent_tools.errors import EngineUnavailable
from tests.unit.engines.kubernetes.specs import cluster_at

RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
EVENT = json.dumps({"type": "ADDED", "object": {"metadata": {"name": "pod"}, "status": RUNNING}}).encode() + b"\n"
FOREVER = 20.0  # seconds: only a failing test waits this long
Answer = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.enough = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.answers.pop(0)(self)

    def log_message(self, *_: object) -> None:
        pass


def refuses(status: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("Retry-After", "0")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def tells(after: float = 0.0, event: bytes = EVENT) -> Answer:
    def answer(handler: Handler) -> None:
        handler.server.enough.wait(after)
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        if event:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        handler.server.enough.wait(FOREVER)
        handler.close_connection = True

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.enough.set()
        server.shutdown()
        serving.join()


@pytest.fixture
def new_api(server: Server) -> Iterator[Callable[[float], Api]]:
    made: list[Api] = []

    def new(timeout: float) -> Api:
        made.append(Api(cluster_at(f"http://127.0.0.1:{server.server_port}"), timeout))
        return made[-1]

    yield new
    server.enough.set()
    for each in made:
        each.close()


def test_a_watch_may_open_more_slowly_than_its_events_come(server: Server, new_api: Callable[[float], Api]) -> None:
    server.answers = [tells(after=0.5)]
    with new_api(FOREVER).watch("/pods", FOREVER, 0.1) as lines:
        found = lines.next()
        assert found
        assert found["type"] == "ADDED"
        begun = time.monotonic()
        assert lines.next() is None
        assert time.monotonic() - begun < FOREVER / 2


@pytest.mark.parametrize("answer", [refuses(429), refuses(500), refuses(503), tells(after=FOREVER)])
def test_one_that_a_busy_server_does_not_open_has_ended(
    server: Server, new_api: Callable[[float], Api], answer: Answer
) -> None:
    server.answers = [answer]
    with new_api(0.2).watch("/pods", FOREVER, FOREVER) as lines:
        assert lines.next() is None


def test_whoever_waits_asks_again(server: Server, new_api: Callable[[float], Api]) -> None:
    server.answers = [refuses(429), refuses(503), tells()]
    assert await_start(new_api(FOREVER), "/pods", "pod", progress_of, time.monotonic() + FOREVER).is_running
    assert server.answers == []


def test_what_is_not_allowed_is_told(server: Server, new_api: Callable[[float], Api]) -> None:
    server.answers = [refuses(403), refuses(401)]
    api = new_api(FOREVER)
    for error in (ApiRefused, EngineUnavailable):
        with pytest.raises(error), api.watch("/pods", FOREVER, FOREVER):
            pass


def test_a_watch_that_breaks_off_has_ended(server: Server, new_api: Callable[[float], Api]) -> None:
    server.answers = [tells()]
    with new_api(FOREVER).watch("/pods", FOREVER, FOREVER) as lines:
        assert lines.next()
        server.enough.set()  # closes the connection in the middle of the body
        assert lines.next() is None
