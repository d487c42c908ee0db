"""The limits of clients' WebSockets, on real sockets: messages without end, floods of frames, odd handshakes."""

from __future__ import annotations

import json
import socket
import struct
import threading

import httpx
import pytest

from agent_tools.limits import MIB
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import KEYS, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.connections import HEALTH, QUICK, counted, is_served
from tests.recorder import connect, read_all, said_to

ASKED = b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
HANDSHAKE = ASKED + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
FIN, TEXT, BINARY, CONTINUED, PING = 0x80, 1, 2, 0, 9


def frame(opcode: int, data: bytes = b"") -> bytes:
    """A client's frame, masked with zeros."""
    size = len(data)
    length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BQ", 0xFF, size)
    return bytes([opcode]) + length + bytes(4) + data


def opened(gateway: Gateway) -> socket.socket:
    connection = connect(gateway.url)
    connection.sendall(HANDSHAKE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return connection


def end_of(connection: socket.socket) -> int:
    """The code that it is closed with, after anything else."""
    said = read_all(connection).removesuffix(b"(reset)")
    start = said.rindex(b"\x88")
    return int.from_bytes(said[start + 2 : start + 4], "big")


def flood(connection: socket.socket, piece: bytes, times: int = 2_000) -> None:
    try:
        for _ in range(times):
            connection.sendall(piece)
    except OSError:  # it was hung up on
        return


FLOODS = {
    "empty pieces": frame(CONTINUED) * 100,
    "pings": frame(FIN | PING, b"hi") * 100,
    "tiny pieces": frame(CONTINUED, b"b") * 100,
    "empty messages": frame(FIN | TEXT) * 100,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_without_end_are_cut(new_gateway: NewGateway, kind: str) -> None:
    gateway = new_gateway({"m": []})
    with opened(gateway) as connection:
        connection.sendall(frame(TEXT, b"a") if "pieces" in kind else b"")
        flood(connection, FLOODS[kind])
        until(lambda: gateway.app.state.sockets.open == 0)
    assert httpx.get(f"{gateway.url}/health").status_code == 200


def test_a_flood_is_closed_with_a_code_and_counted(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []})
    with opened(gateway) as connection:
        connection.sendall(frame(FIN | PING) * 1_500)
        assert end_of(connection) == 1008
    assert counted(gateway, "malformed") == 1


def test_a_message_that_does_not_come_to_its_end_is_cut(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []}, **QUICK)
    with opened(gateway) as connection:
        connection.sendall(frame(TEXT, b'{"type"'))
        assert end_of(connection) == 1008
    with opened(gateway) as connection:
        connection.sendall(frame(FIN | TEXT, b"a" * 100)[:50])
        assert end_of(connection) == 1008
    assert counted(gateway, "late") == 2


def test_a_message_that_is_too_large_is_cut(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []}, max_body_bytes=1_000)
    with opened(gateway) as connection:
        connection.sendall(frame(FIN | TEXT, b"a" * 1_001)[:20])
        assert end_of(connection) == 1009
    with opened(gateway) as connection:
        connection.sendall(frame(TEXT, b"a" * 600) + frame(FIN | CONTINUED, b"a" * 600))
        assert end_of(connection) == 1009


def test_a_message_in_pieces_is_read_whole(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["One."]})
    text = json.dumps({"type": "response.create", "model": "m", "input": "é" * 100}).encode()
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    with opened(gateway) as connection:
        connection.sendall(frame(TEXT, pieces[0]) + frame(FIN | PING, b"between"))
        for piece in pieces[1:]:
            connection.sendall(frame(CONTINUED, piece))
        connection.sendall(frame(FIN | CONTINUED))
        said = b""
        while b"response.completed" not in said:
            said += connection.recv(65536)
    assert gateway.upstream.requests[0]["messages"][0]["content"] == "é" * 100


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\xed\xa0\x80"])
def test_text_that_is_no_utf_8_ends_the_connection(new_gateway: NewGateway, data: bytes) -> None:
    with opened(new_gateway({"m": []})) as connection:
        connection.sendall(frame(FIN | TEXT, data))
        assert end_of(connection) == 1007


def test_frames_that_are_against_the_protocol_end_the_connection(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []})
    for data in (b"\x81\x05hello", frame(0xF0), frame(FIN | CONTINUED, b"a"), frame(FIN | PING, b"a" * 126)):
        with opened(gateway) as connection:
            connection.sendall(data)
            assert end_of(connection) == 1002
    until(lambda: gateway.app.state.sockets.open == 0)


def test_only_a_get_of_responses_is_upgraded(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, **QUICK)
    known = HANDSHAKE.replace(b"Upgrade:", f"Authorization: Bearer {KEYS[0]}\r\nUpgrade:".encode(), 1)
    many = b"".join(b"X-%d: a\r\n" % number for number in range(200))
    for head, status in (
        (HANDSHAKE, b"401"),
        (HANDSHAKE.replace(b"/v1/responses", b"/v1/containers"), b"401"),
        (known.replace(b"/v1/responses", b"/v1/containers"), b"403"),
        (known.replace(b"/v1/", b"/other/"), b"403"),
        (ASKED + b"\r\n", b"400"),
        (known.replace(b"GET", b"POST"), b"408"),  # it is no WebSocket's, so that nothing is served
        (known.replace(b"Upgrade:", many + b"Upgrade:", 1), b"408"),
    ):
        assert said_to(gateway.url, head)[9:12] == status, head
    with connect(gateway.url) as connection:
        assert is_served(connection)


def test_a_client_that_reads_nothing_stops_no_other(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply("word " * 400_000, piece=2_000)})
    request = json.dumps({"type": "response.create", "model": "m", "input": "Go."}).encode()
    with opened(gateway) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(frame(FIN | TEXT, request) * 3)
        until(lambda: gateway.upstream.requests)
        for _ in range(20):
            with connect(gateway.url) as other:
                other.sendall(HEALTH)
                assert other.recv(65536).startswith(b"HTTP/1.1 200")
    until(lambda: gateway.app.state.sockets.open == 0)
    until(lambda: gateway.app.state.jobs.active == 0)


def test_answers_wait_outside_of_the_write_buffer_of_a_client_that_reads_nothing(new_gateway: NewGateway) -> None:
    size, number = 1_000_000, 12
    gateway = new_gateway({"m": lambda _: ScriptedReply("w" * size)})
    with opened(gateway) as connection:
        for each in range(number):
            request = {"type": "response.create", "model": "m", "input": "Go.", "stream_id": str(each)}
            connection.sendall(frame(FIN | TEXT, json.dumps(request).encode()))
        until(lambda: len(gateway.upstream.requests) == number and gateway.app.state.jobs.active == 0)
        (protocol,) = gateway.protocols
        assert 0 < protocol.transport.get_write_buffer_size() < 2 * size
        read = 0
        while read < 3 * size * number:  # each text comes at least so often
            read += len(connection.recv(MIB))
            assert protocol.transport.get_write_buffer_size() < 2 * size


def test_many_connections_leave_nothing_behind(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": []})

    def visit() -> None:
        for number in range(20):
            with opened(gateway) as connection:
                connection.sendall([frame(FIN | 8), frame(FIN | TEXT, b"{}"), b"\x81", b""][number % 4])

    visitors = [threading.Thread(target=visit) for _ in range(5)]
    for each in visitors:
        each.start()
    for each in visitors:
        each.join()
    until(lambda: gateway.app.state.sockets.open == 0)
    assert not gateway.app.state.services.in_progress.number
