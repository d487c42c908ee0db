from __future__ import annotations

import hashlib

import pytest

from agent_tools.runtime.egress.client_hello import UNRECOGNIZED_NAME
from agent_tools.runtime.egress.journal import Journal
from tests.unit.runtime.egress import hellos
from tests.unit.runtime.egress.conftest import Keep, OpenNetwork
from tests.unit.runtime.egress.hellos import hello, record, server_name
from tests.unit.runtime.egress.network import NAME, Server
from tests.waiting import until

GREETING = hello(server_name(NAME))


def test_a_tunnel_carries_bytes_both_ways_once_its_greeting_names_the_host(
    keep: Keep, open_network: OpenNetwork
) -> None:
    server = keep(Server(answer=b"answer"))
    network = open_network([f"{NAME}:{server.port}"])
    back = network.tunnel(f"{NAME}:{server.port}", GREETING)
    assert back == b"HTTP/1.1 200 Connection established\r\n\r\nanswer"
    assert server.got == [GREETING]
    (record_,) = network.taken()
    assert (record_.host, record_.port, record_.status, record_.reason) == (NAME, server.port, "closed", "")
    assert (record_.bytes_in, record_.bytes_out) == (len(b"answer"), len(GREETING))


@pytest.mark.parametrize(("data", "why"), hellos.HOSTILE.values(), ids=hellos.HOSTILE.keys())
def test_nothing_goes_out_before_a_greeting_that_names_the_host(
    server: Server, open_network: OpenNetwork, data: bytes, why: str
) -> None:
    network = open_network([f"{NAME}:{server.port}"])
    back = network.tunnel(f"{NAME}:{server.port}", data)
    assert back == b"HTTP/1.1 200 Connection established\r\n\r\n" + UNRECOGNIZED_NAME
    (found,) = network.taken()
    assert (found.status, found.bytes_out) == ("refused", 0)
    assert why in found.reason
    assert b"".join(server.got) == b""


def test_nothing_goes_out_when_the_greeting_names_another(server: Server, open_network: OpenNetwork) -> None:
    network = open_network([f"{NAME}:{server.port}", f"other.example.com:{server.port}"])
    assert network.tunnel(f"{NAME}:{server.port}", hello(server_name("other.example.com"))).endswith(UNRECOGNIZED_NAME)
    assert network.taken()[0].reason == "its TLS greeting names another server"
    assert b"".join(server.got) == b""


def test_a_greeting_that_comes_with_the_request_is_read_too(server: Server, open_network: OpenNetwork) -> None:
    network = open_network([f"{NAME}:{server.port}"])
    request = f"CONNECT {NAME}:{server.port} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
    assert network.say(request + hello(server_name("evil.example"))).endswith(UNRECOGNIZED_NAME)
    assert b"".join(server.got) == b""


@pytest.mark.parametrize("is_in_one_piece", [True, False])
def test_a_second_greeting_that_names_another_does_not_go_out(
    server: Server, open_network: OpenNetwork, is_in_one_piece: bool
) -> None:
    network = open_network([f"{NAME}:{server.port}"])
    second = hello(server_name("evil.example"))
    with network.connect() as code:
        code.sendall(f"CONNECT {NAME}:{server.port} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
        assert b"200" in code.recv(65536)
        code.sendall(GREETING + (second if is_in_one_piece else b""))
        if not is_in_one_piece:
            until(lambda: b"".join(server.got) == GREETING)
            code.sendall(second)
        assert b"".join(iter(lambda: code.recv(65536), b"")) == UNRECOGNIZED_NAME
    assert second not in b"".join(server.got)


def test_an_address_that_is_listed_is_open_whatever_is_spoken(keep: Keep, open_network: OpenNetwork) -> None:
    server = keep(Server(answer=b"welcome"))
    network = open_network([f"127.0.0.1:{server.port}"])
    assert network.tunnel(f"127.0.0.1:{server.port}", b"hello").endswith(b"welcome")
    assert server.got == [b"hello"]


def test_many_megabytes_come_in_whole(keep: Keep, open_network: OpenNetwork) -> None:
    content = hashlib.sha256(b"seed").digest() * (8 * 1024 * 1024 // 32)
    server = keep(Server(answer=content))
    network = open_network([f"{NAME}:{server.port}"])
    back = network.tunnel(f"{NAME}:{server.port}", GREETING)
    assert back.partition(b"\r\n\r\n")[2] == content


def test_many_megabytes_go_out_whole(keep: Keep, open_network: OpenNetwork) -> None:
    content = record(b"x" * 16_384, 23) * 400
    server = keep(Server(answer=b"thanks", takes=lambda got: len(got) == len(GREETING) + len(content)))
    network = open_network([f"{NAME}:{server.port}"])
    assert network.tunnel(f"{NAME}:{server.port}", GREETING + content).endswith(b"thanks")
    assert server.got == [GREETING + content]


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_received": 1000}, "more than 1,000 bytes in"),
        ({"max_sent": 10}, "more than 10 bytes out"),
        ({"idle_timeout": 0.2}, "without a byte"),
        ({"max_seconds": 0.2}, "longer than 0.2 s"),
    ],
)
def test_a_connection_ends_at_its_bounds(
    keep: Keep, open_network: OpenNetwork, limits: dict[str, float], reason: str
) -> None:
    server = keep(Server(answer=b"x" * 5000 if "max_received" in limits else b""))
    network = open_network([f"{NAME}:{server.port}"], limits=limits)
    back = network.tunnel(f"{NAME}:{server.port}", GREETING)
    assert len(back) < 2000
    (found,) = network.taken()
    assert found.status in ("failed", "refused")
    assert reason in found.reason


@pytest.mark.parametrize("sent", [b"G", b"CONNECT a.org:443 HTTP/1.1", b"GET http://a"])
def test_a_request_that_does_not_come_is_not_waited_for(open_network: OpenNetwork, sent: bytes) -> None:
    network = open_network([NAME], limits={"head_timeout": 0.2})
    assert network.say(sent).startswith(b"HTTP/1.1 408 ")
    assert network.taken()[0].reason == "no request in time"


def test_a_greeting_that_does_not_come_is_not_waited_for(server: Server, open_network: OpenNetwork) -> None:
    network = open_network([f"{NAME}:{server.port}"], limits={"head_timeout": 0.2})
    assert network.tunnel(f"{NAME}:{server.port}", GREETING[:20]).endswith(UNRECOGNIZED_NAME)
    assert "does not come" in network.taken()[0].reason


def test_connections_at_once_are_limited_and_told_so(server: Server, open_network: OpenNetwork) -> None:
    network = open_network([f"{NAME}:{server.port}"], limits={"max_connections": 1})
    with network.connect() as first:
        first.sendall(f"CONNECT {NAME}:{server.port} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
        assert b"200" in first.recv(65536)
        assert network.say(b"CONNECT a.org:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    refused = b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n"
    until(lambda: network.say(refused).startswith(b"HTTP/1.1 403 "))


def test_connections_of_a_run_are_limited_and_counted(open_network: OpenNetwork) -> None:
    network = open_network([NAME], limits={"max_opened": 3})
    answers = [network.say(b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n")[:12] for _ in range(5)]
    assert answers == [b"HTTP/1.1 403"] * 3 + [b"HTTP/1.1 503"] * 2
    records, left_out = network.egress.take_connections()
    assert (len(records), left_out) == (3, 2)
    network.egress.count_anew()
    assert network.say(b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org\r\n\r\n").startswith(b"HTTP/1.1 403")


def test_connections_beyond_the_records_are_counted() -> None:
    journal = Journal(2)
    for _ in range(5):
        entry = journal.begin()
        entry.status = "refused"
        journal.end(entry)
    records, left_out = journal.take_connections()
    assert (len(records), left_out) == (2, 3)


def test_requests_on_a_kept_connection_count_like_connections(keep: Keep, open_network: OpenNetwork) -> None:
    server = keep(Server(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    host = f"127.0.0.1:{server.port}"
    network = open_network([host], limits={"max_opened": 3})
    request = f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    back = network.say(*[request] * 3, request * 3)
    assert (back.count(b"HTTP/1.1 200"), back.count(b"HTTP/1.1 503"), server.connections) == (3, 1, 3)
    assert back.endswith(b"This run has opened too many connections (max_opened).\n")
    records, left_out = network.egress.take_connections()
    assert (len(records), left_out) == (3, 1)
    network.egress.count_anew()
    assert network.say(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")


def test_bytes_of_a_request_on_a_kept_connection_are_bounded(keep: Keep, open_network: OpenNetwork) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000]
    server = keep(Server(answer=lambda got: answers.pop(0)))
    host = f"127.0.0.1:{server.port}"
    network = open_network([host], limits={"max_received": 1_000})
    request = f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert len(network.say(request, request)) < 2_000
    assert "more than 1,000 bytes in" in network.taken(2)[1].reason


def test_a_connection_that_goes_on_is_told_as_open_and_its_bytes_once(keep: Keep, open_network: OpenNetwork) -> None:
    server = keep(Server())
    network = open_network([f"127.0.0.1:{server.port}"])
    with network.connect() as code:
        code.sendall(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\nHost: x\r\n\r\nabc".encode())
        until(lambda: b"".join(server.got) == b"abc")
        ((found,), _) = network.egress.take_connections()
        assert (found.status, found.bytes_out) == ("open", 3)
        assert network.egress.take_connections() == ((), 0)
        code.sendall(b"de")
        until(lambda: b"".join(server.got) == b"abcde")
        ((found,), _) = network.egress.take_connections()
        assert (found.status, found.bytes_out) == ("open", 2)
        code.sendall(b"f")
        until(lambda: b"".join(server.got) == b"abcdef")
    until(lambda: not network.egress._tasks)
    ((found,), _) = network.egress.take_connections()
    assert (found.status, found.bytes_out) == ("closed", 1)
