"""Shells over WebSockets: who may attach, what goes through, and what ends them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from tests.gateway.asking import until
from tests.gateway.connections import HEALTH, counted
from tests.recorder import connect as tcp
from tests.recorder import read_all
from tests.wires.conftest import Served

HOST = "localhost"
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
UPGRADE += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"


def attached(
    served: Served, id_: str, first: Any, user: str = "ann", chat: str = "1", **headers: str
) -> ClientConnection:
    named = {name: value for name, value in served.headers(user, chat).items() if name != "Authorization"}
    socket = connect(f"{served.socket_url}/api/terminals/{id_}", additional_headers={**named, **headers}, max_size=None)
    if first is not None:
        socket.send(first if isinstance(first, str) else json.dumps(first))
    return socket


def auth(served: Served, key: str = "first") -> dict[str, str]:
    return {"type": "auth", "token": served.keys[key]}


def closed(socket: ClientConnection) -> int | None:
    try:
        while True:
            socket.recv(timeout=30)
    except ConnectionClosed as ended:
        return ended.rcvd.code if ended.rcvd else None


def heard(socket: ClientConnection, text: str) -> str:
    found = ""
    while text not in found:
        data = socket.recv(timeout=30)
        assert isinstance(data, bytes)
        found += data.decode("utf-8", "replace")
    return found


@contextlib.contextmanager
def shell(served: Served, client: httpx.Client) -> Iterator[ClientConnection]:
    with attached(served, client.post("/api/terminals").json()["id"], auth(served)) as socket:
        yield socket


def test_a_shell_echoes_is_resized_and_ends(served: Served) -> None:
    client = served.client()
    with shell(served, client) as socket:
        socket.send(json.dumps({"type": "resize", "rows": 13, "cols": 43}))
        for nonsense in (
            "[]",
            "{",
            '{"type": "resize", "rows": "x"}',
            '{"type": "resize", "rows": -1, "cols": 1e9}',
            "ping",
        ):
            socket.send(nonsense)
        socket.send(b"echo te$((40+2))st; stty size; echo $HOME\n")
        assert "13 43" in heard(socket, "/workspace\r\n")
        assert "te42st" in client.get("/api/terminals/user/output").json()["output"]
        client.post("/api/terminals/user/input", json={"input": "echo mo$((1+1))del\n"})
        heard(socket, "mo2del")
        socket.send(b"exit\n")
        assert closed(socket) == 1000
    assert client.get("/api/terminals").json() == []


def test_a_shell_ends_with_its_client(served: Served) -> None:
    client = served.client()
    with shell(served, client) as socket:
        socket.send(b"sleep 100\n")
        assert len(client.get("/api/terminals").json()) == 1
    until(lambda: client.get("/api/terminals").json() == [])


def test_others_and_strangers_are_refused(served: Served) -> None:
    id_ = served.client().post("/api/terminals").json()["id"]
    for first in (
        {"type": "auth", "token": "wrong"},
        {"type": "auth", "token": 1},
        "[]",
        "{",
        "[" * 3_000,
        {"type": "x"},
    ):
        assert closed(attached(served, id_, first)) == 4001
    assert closed(attached(served, id_, json.dumps({**auth(served), "more": "x" * 5_000}))) == 4001
    assert closed(attached(served, id_, auth(served), user="bob")) == 4004
    assert closed(attached(served, id_, auth(served), chat="2")) == 4004
    assert closed(attached(served, id_, auth(served, "second"))) == 4004
    assert closed(attached(served, id_, auth(served, "plain"))) == 4004
    assert closed(attached(served, f"{id_}x", auth(served))) == 4004
    with attached(served, id_, auth(served)) as socket:
        socket.send(b"echo he$((1+1))re\n")
        heard(socket, "he2re")
        assert closed(attached(served, id_, auth(served))) == 4009
    text = httpx.get(f"{served.gateway.url}/metrics").text
    assert 'agent_tools_requests_total{method="WEBSOCKET",route="attach",status="401"}' in text
    assert 'agent_tools_requests_total{method="WEBSOCKET",route="attach",status="101"}' in text
    assert 'agent_tools_security_events_total{event="unknown_key"}' in text


def test_sockets_without_an_owner_make_room_for_others(serve: Any) -> None:
    served = serve(max_connections=100)
    ask = f"GET /terminal/api/terminals/x HTTP/1.1\r\nHost: {HOST}\r\n".encode() + UPGRADE
    with contextlib.ExitStack() as stack, shell(served, served.client()) as known:
        known.send(b"echo kno$((1+1))wn\n")
        heard(known, "kno2wn")  # its key has been read: before, it would be the oldest without an owner
        crowd = [stack.enter_context(tcp(served.gateway.url)) for _ in range(120)]
        for each in crowd:
            each.sendall(ask)
        until(lambda: counted(served.gateway, "too_many_connections") >= 20)
        read_all(crowd[0])  # to its end
        for each in crowd[:40]:
            each.close()
        more = [stack.enter_context(tcp(served.gateway.url)) for _ in range(60)]
        for each in more:
            each.sendall(HEALTH)
            assert each.recv(65_536).startswith(b"HTTP/1.1 200")
        known.send(b"echo sti$((1+1))ll\n")
        heard(known, "sti2ll")


def test_a_socket_over_the_rate_of_its_key_is_told_so(served: Served) -> None:
    id_, services = served.client().post("/api/terminals").json()["id"], served.gateway.services
    NamedKeys(services.store).limit("first", KeyLimits(max_requests_per_minute=1))
    services._read_keys()
    until(lambda: served.client().post("/api/terminals").status_code == 429)
    with pytest.raises(InvalidStatus, match="429") as refusal:
        attached(served, id_, None, Authorization=served.headers()["Authorization"])
    assert int(refusal.value.response.headers["retry-after"]) > 0
    socket = attached(served, id_, auth(served))
    assert closed(socket) == 4001
    assert "requests" in str(socket.close_reason)
    told = 'agent_tools_requests_total{method="WEBSOCKET",route="attach",status="429"} 1.0'
    until(lambda: told in services.metrics.text().decode())
    told = 'agent_tools_requests_total{method="WEBSOCKET",route="none",status="429"} 1.0'
    assert told in services.metrics.text().decode()


def test_a_key_in_the_head_is_asked_before_the_socket_opens(served: Served) -> None:
    id_ = served.client().post("/api/terminals").json()["id"]
    with pytest.raises(InvalidStatus, match="401"):
        attached(served, id_, None, Authorization="Bearer wrong-key")
    with attached(served, id_, {"type": "auth", "token": ""}, **served.headers()) as socket:
        socket.send(b"exit\n")
        assert closed(socket) == 1000


def test_sockets_of_one_key_leave_room_for_others(serve: Any) -> None:
    served = serve(max_connections=4)  # 2 for sockets, one of them for a key
    client = served.client()
    with shell(served, client):
        assert closed(attached(served, client.post("/api/terminals").json()["id"], auth(served))) == 4001
        with attached(served, "x", auth(served, "second")) as other:
            assert closed(other) == 4004


def test_pages_of_other_origins_are_refused_to_keys_of_people(served: Served) -> None:
    client = served.client(key="plain", chat="")
    for origin, code in (("http://evil.example", 4001), ("null", 4001), (served.gateway.url, 1000)):
        id_ = client.post("/api/terminals").json()["id"]
        with attached(served, id_, auth(served, "plain"), "", "", Origin=origin) as socket:
            with contextlib.suppress(ConnectionClosed):
                socket.send(b"exit\n")
            assert closed(socket) == code


def test_the_chat_of_a_persons_key_stands_in_the_first_message(served: Served) -> None:
    id_ = served.client(key="plain", chat="7").post("/api/terminals").json()["id"]
    with attached(served, id_, {**auth(served, "plain"), "chat_id": "7"}, "", "") as socket:
        socket.send(b"exit\n")
        assert closed(socket) == 1000


def test_frames_that_are_too_large_end_the_shell(served: Served) -> None:
    client = served.client()
    for frame in (b"x" * (64 * 1024 + 1), "x" * (64 * 1024 + 1)):
        with shell(served, client) as socket:
            socket.send(frame)
            assert closed(socket) == 1009


def test_a_flood_comes_through_with_its_end(served: Served) -> None:
    with shell(served, served.client()) as socket:
        socket.send(b"head -c 8000000 /dev/zero | tr '\\0' 'x'; echo; echo fl$((1+1))ood\n")
        heard(socket, "fl2ood")


def test_so_many_shells_are_open_at_once(served: Served) -> None:
    client = served.client()
    for _ in range(4):
        assert client.post("/api/terminals").status_code == 200
    answer = client.post("/api/terminals")
    assert (answer.status_code, "4" in answer.json()["error"]) == (429, True)
    for each in client.get("/api/terminals").json():
        assert client.get(f"/api/terminals/{each['id']}").json()["id"] == each["id"]
        assert client.delete(f"/api/terminals/{each['id']}").json() == {"status": "deleted"}
    assert client.post("/api/terminals").status_code == 200


WRITER = """
import os, sys
for n in range(640):
    os.write(1, b"=" * 65_535 + bytes([10]))
    open("n.txt", "w").write(str(n))
print("do" + "ne")
"""


def test_a_shell_waits_for_a_client_that_reads_nothing(served: Served) -> None:
    client = served.client()
    client.post("/files/write", json={"path": "writer.py", "content": WRITER})

    def written() -> int:
        return int(client.get("/files/read", params={"path": "n.txt"}).json().get("content") or 0)

    id_ = client.post("/api/terminals").json()["id"]
    named = {name: value for name, value in served.headers().items() if name != "Authorization"}
    url = f"{served.socket_url}/api/terminals/{id_}"
    with connect(url, additional_headers=named, max_size=None, max_queue=1) as socket:
        socket.send(json.dumps(auth(served)))
        socket.send(b"stty -onlcr -echo; python3 writer.py\n")
        until(lambda: client.get("/files/read", params={"path": "n.txt"}).status_code == 200)
        before = -1
        while before != (before := written()):  # until it has stopped
            time.sleep(1)
        assert before < 200  # of 640 pieces, which are 42 MB
        size = 0
        while "done" not in (text := socket.recv(timeout=30).decode("utf-8", "replace")):  # type: ignore[union-attr]
            size += text.count("=")
        assert size + text.count("=") == 640 * 65_535


def test_open_shells_end_when_the_gateway_stops(served: Served) -> None:
    client = served.client()
    with shell(served, client) as socket:
        socket.send(b"echo he$((1+1))re\n")
        heard(socket, "he2re")
        before = time.monotonic()
        served.gateway.__exit__(None, None, None)
        assert closed(socket) == 1012
        assert time.monotonic() - before < 20
