"""The limits of clients' connections, on real sockets: late heads and bodies, too many, ambiguous, left unread."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import httpx
import pytest

from agent_tools.bodies.connections import LINGER_SECONDS, MAX_DROPPED, LingeringTransport
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import KEYS, until
from tests.gateway.conftest import NewGateway
from tests.gateway.connections import HEALTH, QUICK, counted, is_served
from tests.recorder import connect, read_all, said_to

KEY = b"Authorization: Bearer key-of-the-test\r\n"
POST = b"POST /v1/containers HTTP/1.1\r\nHost: localhost\r\n"


def code_of(answer: bytes) -> tuple[int, str | None]:
    """Its status, and the code of the error that it is."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def dripped(connection: socket.socket, piece: bytes = b"a") -> bytes:
    """Return what is answered while pieces are sent without an end."""
    connection.settimeout(0.02)
    found = b""
    for _ in range(2_000):
        try:
            connection.sendall(piece)
            data = connection.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            return found
        if not data:
            return found
        found += data
    raise AssertionError("it was never hung up on")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_dripping", [True, False])
def test_a_head_that_does_not_come_to_its_end_is_cut(
    new_gateway: NewGateway, is_first: bool, is_dripping: bool
) -> None:
    gateway = new_gateway({}, **QUICK)
    with connect(gateway.url) as connection:
        if not is_first:
            assert is_served(connection)
        connection.sendall(b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        answer = dripped(connection) if is_dripping else read_all(connection)
    assert code_of(answer) == (408, "request_timeout")
    assert counted(gateway, "late") == 1


def test_a_connection_that_asks_for_nothing_is_closed_without_a_word(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, **QUICK)
    with connect(gateway.url) as connection:
        assert read_all(connection) == b""
    assert counted(gateway, "late") == 0


@pytest.mark.parametrize(
    "length", [b"Content-Length: 100000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
)
@pytest.mark.parametrize("is_dripping", [True, False])
def test_a_body_that_does_not_come_to_its_end_is_cut(new_gateway: NewGateway, length: bytes, is_dripping: bool) -> None:
    gateway = new_gateway({}, **QUICK)
    with connect(gateway.url) as connection:
        connection.sendall(POST + length)
        piece = b"1\r\na\r\n" if b"chunked" in length else b"a"
        answer = dripped(connection, piece) if is_dripping else read_all(connection)
    assert code_of(answer) == (408, "request_timeout")
    assert counted(gateway, "late") == 1
    assert gateway.services.containers.all_of("local") == []


def test_a_body_that_comes_slowly_but_steadily_is_waited_for(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, body_timeout=0.5, min_body_rate=10)
    body = json.dumps({"name": "n" * 200}).encode()
    with connect(gateway.url) as connection:
        connection.sendall(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:100])
        time.sleep(1)  # longer than it may keep waiting, but for what has come
        connection.sendall(body[100:])
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_a_stream_is_not_cut_by_the_deadlines_of_requests(new_gateway: NewGateway) -> None:
    half = threading.Event()
    gateway = new_gateway({"m": ScriptedReply(text="ab" * 10, piece=1, wait_midway=half)}, **QUICK)
    body = {"model": "m", "input": "Hi.", "stream": True}
    with httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: response.created"
        for _ in range(2):  # longer than any deadline, as another connection shows
            assert code_of(said_to(gateway.url, b"GET / HTTP/1.1\r\nHost: ")) == (408, "request_timeout")
        half.set()
        assert "data: [DONE]" in list(lines)


def test_a_connection_serves_many_requests_in_turn_and_at_once(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, **QUICK)
    with connect(gateway.url) as connection:
        for _ in range(3):
            assert is_served(connection)
        connection.sendall(HEALTH * 3 + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert read_all(connection).count(b"HTTP/1.1 200") == 4


def test_connections_that_ask_for_nothing_make_room_for_others(new_gateway: NewGateway) -> None:
    half = threading.Event()
    gateway = new_gateway({"m": ScriptedReply(text="abcd", piece=1, wait_midway=half)}, max_connections=10)
    body = {"model": "m", "input": "Hi.", "stream": True}
    with ExitStack() as stack:
        answer = stack.enter_context(httpx.stream("POST", f"{gateway.url}/v1/responses", json=body, timeout=60))
        lines = answer.iter_lines()
        assert next(lines) == "event: response.created"
        crowd = [stack.enter_context(connect(gateway.url)) for _ in range(60)]
        for each in crowd[-9:]:
            each.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        assert httpx.get(f"{gateway.url}/health").status_code == 200
        assert read_all(crowd[0]) in (b"", b"(reset)")
        assert counted(gateway, "too_many_connections") >= 51
        half.set()
        assert "data: [DONE]" in list(lines)


def test_one_connection_more_than_can_be_served_is_told_so(new_gateway: NewGateway) -> None:
    half = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="abcd", piece=1, wait_midway=half)}, max_connections=2)
    body = {"model": "m", "input": "Hi.", "stream": True}
    url = f"{gateway.url}/v1/responses"
    with ExitStack() as stack:
        answers = [stack.enter_context(httpx.stream("POST", url, json=body, timeout=60)) for _ in range(2)]
        streams = [answer.iter_lines() for answer in answers]
        assert [next(lines) for lines in streams] == ["event: response.created"] * 2
        assert code_of(said_to(gateway.url, HEALTH)) == (503, "overloaded")
        half.set()
        assert all("data: [DONE]" in list(lines) for lines in streams)


def test_refused_requests_whose_clients_go_on_sending_make_room_for_others(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-the-test",), max_connections=10)
    with ExitStack() as stack:
        for _ in range(30):
            each = stack.enter_context(connect(gateway.url))
            each.sendall(POST + b"Content-Length: 2000000\r\n\r\n{")
            assert code_of(read_all(each)) == (401, "invalid_api_key")
        assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_requests_of_one_key_leave_room_for_others(new_gateway: NewGateway) -> None:
    half = threading.Event()
    reply = ScriptedReply(text="abcd", piece=1, wait_midway=half)
    gateway = new_gateway({"m": lambda _: reply}, api_keys=KEYS, max_connections=4)  # 3 of them for one key
    body, url = {"model": "m", "input": "Hi.", "stream": True}, f"{gateway.url}/v1/responses"
    first, second = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    with ExitStack() as stack:
        stack.callback(half.set)
        options = {"json": body, "headers": first, "timeout": 60}
        answers = [stack.enter_context(httpx.stream("POST", url, **options)) for _ in range(3)]
        streams = [answer.iter_lines() for answer in answers]
        assert [next(lines) for lines in streams] == ["event: response.created"] * 3
        refused = httpx.get(f"{gateway.url}/v1/containers", headers=first)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert httpx.get(f"{gateway.url}/v1/containers", headers=second).status_code == 200


def sent_until_refused(connection: socket.socket, piece: bytes) -> int:
    sent = 0
    with suppress(OSError):
        while sent < 200 * 2**20:
            sent += connection.send(piece)
    return sent


@pytest.mark.parametrize("path", [b"/v1/responses", b"/v1/chat/completions", b"/v1/files"])
def test_an_endless_body_is_not_swallowed(new_gateway: NewGateway, path: bytes) -> None:
    gateway = new_gateway({}, max_body_bytes=1_000, max_upload_bytes=1_000)
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n" if b"files" in path else b""
    with connect(gateway.url) as connection:
        head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + kind + b"Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        if kind:
            part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        sent = sent_until_refused(connection, b"10000\r\n" + b"a" * 65536 + b"\r\n")
        assert sent < MAX_DROPPED + 30 * 2**20  # and what the kernels of both sides hold
    assert counted(gateway, "too_large") == 1


def test_an_answer_before_the_body_is_read_ends_the_connection(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=("key-of-the-test",), max_body_bytes=1_000)
    long = b"Content-Length: 2000000\r\n\r\n"
    for request, expected in (
        (POST + long, (401, "invalid_api_key")),
        (POST + KEY + long + b"a" * 70_000, (413, "request_too_large")),
        (b"PUT /v1/containers HTTP/1.1\r\nHost: a\r\n" + KEY + long + b"a", (405, None)),
        (b"POST /v1/nothing HTTP/1.1\r\nHost: a\r\n" + KEY + long, (404, "unknown_url")),
        (b"GET /nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", (404, "unknown_url")),
    ):
        with connect(gateway.url) as connection:
            connection.sendall(request)
            head = read_all(connection)
            assert code_of(head) == expected


INNER = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = {
    "a length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + INNER,
    "no length and chunks": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "two lengths": b"Content-Length: 4\r\nContent-Length: 0\r\n\r\nabcd" + INNER,
    "two lengths in one": b"Content-Length: 4, 0\r\n\r\nabcd" + INNER,
    "a signed length": b"Content-Length: +4\r\n\r\nabcd" + INNER,
    "a negative length": b"Content-Length: -4\r\n\r\nabcd" + INNER,
    "a hexadecimal length": b"Content-Length: 0x4\r\n\r\nabcd" + INNER,
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + INNER,
    "a space before the colon": b"Content-Length : 4\r\n\r\nabcd" + INNER,
    "a tab before the colon": b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a NUL": b"X-A: a\x00b\r\n\r\n" + INNER,
    "a lone return": b"X-A: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a signed chunk": b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n" + INNER,
    "a chunk of no size": b"Transfer-Encoding: chunked\r\n\r\n\r\na\r\n0\r\n\r\n" + INNER,
    "a chunk longer than it says": b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n" + INNER,
    "a huge chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\na\r\n0\r\n\r\n" + INNER,
}


def test_what_can_be_read_in_two_ways_is_refused_once(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    answers = {form: said_to(gateway.url, POST + request) for form, request in SMUGGLED.items()}
    assert {form for form, answer in answers.items() if answer[9:12] not in (b"400", b"501")} == set()
    assert {form for form, answer in answers.items() if answer.count(b"HTTP/1.1 ") != 1} == set()
    assert gateway.services.containers.all_of("local") == []
    until(lambda: counted(gateway, "malformed") == len(SMUGGLED))  # counted once the last one has hung up


def test_chunks_in_http_1_0_are_refused(new_gateway: NewGateway) -> None:
    request = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER
    assert code_of(said_to(new_gateway({}).url, request))[0] == 400


class Wire:
    """A transport that notes what is done to it, and a clock to go with it."""

    def __init__(self, unsent: int = 0) -> None:
        self.done: list[str] = []
        self.unsent = unsent
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)

    def is_closing(self) -> bool:
        return "close" in self.done or "abort" in self.done

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def pass_time(self) -> None:
        ((seconds, call),), self.timers = self.timers, []
        assert seconds == LINGER_SECONDS
        call()


def farewell(wire: Wire, is_sending: bool) -> LingeringTransport:
    return LingeringTransport(wire, wire, lambda: is_sending)  # type: ignore[arg-type]


def test_a_client_that_takes_what_is_left_has_time_for_it_and_one_that_does_not_has_none() -> None:
    wire = Wire(unsent=100)
    farewell(wire, is_sending=False).close()
    for unsent in (90, 80):
        wire.unsent = unsent
        wire.pass_time()
    assert wire.done == ["close"]
    wire.pass_time()
    assert wire.done == ["close", "abort"]


def test_a_client_that_still_sends_is_heard_for_a_while_and_not_listened_to() -> None:
    wire = Wire()
    transport = farewell(wire, is_sending=True)
    transport.close()
    transport.close()
    assert transport.is_closing()
    assert wire.done == ["resume_reading", "write_eof"]
    transport.drop(MAX_DROPPED)
    assert wire.done == ["resume_reading", "write_eof"]
    transport.drop(1)
    assert wire.done[2:] == ["abort"]
    wire.pass_time()
    assert wire.done[3:] == ["abort"]
