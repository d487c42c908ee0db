from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from agent_tools.engines.network import Target
from agent_tools.runtime.egress.forwarding import RequestTarget, request_for
from tests.unit.runtime.egress.conftest import Keep, OpenNetwork
from tests.unit.runtime.egress.network import NAME, Hop, Network, Server, certificate

SECRET = "Bearer c0ffee"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _is_whole(got: bytes) -> bool:
    """Return whether a whole request has come, as a strict server reads it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(got)
    while (event := server.next_event()) is not h11.NEED_DATA:
        if isinstance(event, h11.EndOfMessage):
            return True
    return False


def _request(url: str, *lines: str, method: str = "GET", body: str = "") -> bytes:
    close = () if any(line.startswith("Connection") for line in lines) else ("Connection: close",)
    return "\r\n".join((f"{method} {url} HTTP/1.1", "Host: whatever", *lines, *close, "", body)).encode()


@pytest.fixture
def upstream(keep: Keep) -> Server:
    return keep(Server(answer=OK, takes=_is_whole))


@pytest.fixture
def network(upstream: Server, keep: Keep, open_network: OpenNetwork) -> Network:
    return open_network([f"127.0.0.1:{upstream.port}", "plain.example:80", NAME], hop=keep(Hop(upstream)))


@pytest.fixture
def guarded(
    keep: Keep, open_network: OpenNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Network, Server]:
    """A network with a header for a server that speaks TLS."""
    context, bundle = certificate(tmp_path)
    monkeypatch.setenv("PIP_CERT", str(bundle))
    server = keep(Server(answer=OK, context=context, takes=_is_whole))
    return open_network([NAME], hop=keep(Hop(server)), headers={NAME: {"Authorization": SECRET}}), server


def test_the_index_of_the_machine_is_asked_in_plain_http_at_its_private_address(
    open_network: OpenNetwork, upstream: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://index.corp:{upstream.port}/simple")
    network = open_network(["pypi", f"other.corp:{upstream.port}"], private=[])
    assert network.say(_request(f"http://index.corp:{upstream.port}/simple/a/")).startswith(b"HTTP/1.1 200 OK")
    assert network.say(_request(f"http://other.corp:{upstream.port}/simple/a/")).startswith(b"HTTP/1.1 403 ")
    assert network.tunnel(f"other.corp:{upstream.port}").startswith(b"HTTP/1.1 403 ")
    assert upstream.connections == 1


def test_a_plain_request_is_made_anew_without_what_is_between_neighbours(network: Network, upstream: Server) -> None:
    head = _request(
        "http://plain.example/a?b=c", "Proxy-Authorization: x", "X-Own: 1", "Connection: X-Gone, close", "X-Gone: 1"
    )
    assert network.say(head + b"").split(b"\r\n")[0] == b"HTTP/1.1 200 OK"
    assert upstream.got == [b"GET /a?b=c HTTP/1.1\r\nHost: plain.example\r\nX-Own: 1\r\nConnection: close\r\n\r\n"]
    (found,) = network.taken()
    assert (found.host, found.port, found.status) == ("plain.example", 80, "closed")
    assert found.bytes_in == len(OK)


def test_fields_named_by_connection_are_gathered_once_for_all_fields() -> None:
    gathered: list[object] = []

    class Name(bytes):
        """A name that notes when it joins a set with the field TE."""

        def strip(self, *_: object) -> Name:
            return self

        lower = strip

        def __hash__(self) -> int:
            return hash(b"te")

        def __eq__(self, other: object) -> bool:
            gathered.append(other)
            return False

    names = type("Names", (bytes,), {"split": lambda *_: [Name(b"x")]})()
    fields = [(b"Connection", names), *[(b"X-Own", b"1")] * 1000]
    request: Any = SimpleNamespace(method=b"GET", headers=SimpleNamespace(raw_items=lambda: fields))
    sent = request_for(request, RequestTarget(Target("plain.example", 80), "/"))
    assert len(sent.headers) == 1002
    assert len(gathered) <= 2


@pytest.mark.parametrize("lines", [("Content-Length: 4",), ("Transfer-Encoding: chunked",)])
def test_a_body_goes_out_as_it_was_framed(network: Network, upstream: Server, lines: tuple[str]) -> None:
    body = "body" if "Length" in lines[0] else "4\r\nbody\r\n0\r\n\r\n"
    assert network.say(_request("http://plain.example/", *lines, method="POST", body=body)).endswith(b"ok")
    server = h11.Connection(h11.SERVER)
    server.receive_data(upstream.got[0])
    events = [server.next_event() for _ in range(3)]
    assert [bytes(event.data) for event in events if isinstance(event, h11.Data)] == [b"body"]


def test_a_client_that_waits_for_leave_to_send_is_given_it(network: Network, upstream: Server) -> None:
    head = _request("http://plain.example/", "Content-Length: 4", "Expect: 100-continue", method="PUT")
    back = network.say(head, b"body")
    assert back.startswith(b"HTTP/1.1 100 ")
    assert back.endswith(b"ok")
    assert b"Expect" not in upstream.got[0]


def test_requests_may_follow_each_other_and_each_is_recorded(network: Network, upstream: Server) -> None:
    request = _request("http://plain.example/", "Connection: keep-alive")
    assert network.say(request, request, _request("http://plain.example/")).count(b"200 OK") == 3
    assert [each.status for each in network.taken(3)] == ["closed"] * 3
    assert upstream.connections == 3


def test_the_host_speaks_tls_and_adds_what_the_code_never_sees(guarded: tuple[Network, Server]) -> None:
    network, server = guarded
    back = network.say(_request(f"http://{NAME}/v1", "Authorization: mine", "authorization: mine, too"))
    assert back.endswith(b"ok")
    assert SECRET.encode() not in back
    assert server.got[0].count(b"uthorization") == 1
    assert f"authorization: {SECRET}\r\n".encode() in server.got[0]
    assert f"Host: {NAME}\r\n".encode() in server.got[0]
    (found,) = network.taken()
    assert (found.host, found.port, found.status) == (NAME, 443, "closed")


def test_a_header_goes_nowhere_else(guarded: tuple[Network, Server]) -> None:
    network, server = guarded
    for url in (f"http://{NAME}:8080/", f"http://x.{NAME}/", f"http://{NAME}.evil.example/", f"http://{NAME}@evil/"):
        assert network.say(_request(url))[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 400")
    for method in ("TRACE", "trace", "TRACK", "Track"):
        assert network.say(_request(f"http://{NAME}/", method=method)).startswith(b"HTTP/1.1 405 ")
    assert server.got == []


def test_a_server_that_is_not_trusted_is_told_no_secret(
    keep: Keep, open_network: OpenNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, bundle = certificate(tmp_path, "other.example")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    server = keep(Server(answer=OK, context=context))
    network = open_network([NAME], hop=keep(Hop(server)), headers={NAME: {"Authorization": SECRET}})
    assert network.say(_request(f"http://{NAME}/")).startswith(b"HTTP/1.1 502 ")
    assert network.taken()[0].reason == "its certificate is not trusted"
    assert b"".join(server.got) == b""


def test_a_redirect_is_handed_to_the_code_and_not_followed(keep: Keep, open_network: OpenNetwork) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    server = keep(Server(answer=answer, takes=_is_whole))
    network = open_network([f"127.0.0.1:{server.port}"])
    back = network.say(_request(f"http://127.0.0.1:{server.port}/", "Connection: close"))
    assert b"location: http://169.254.169.254/" in back.lower()
    assert server.connections == 1


SMUGGLED = {
    "two lengths": _request("http://plain.example/", "Content-Length: 1", "Content-Length: 2", method="POST", body="a"),
    "a length and chunks": (
        _request(
            *("http://plain.example/", "Content-Length: 4", "Transfer-Encoding: chunked"),
            method="POST",
            body="0\r\n\r\nGET http://evil.example/ HTTP/1.1\r\nHost: e\r\n\r\n",
        )
    ),
    "chunks in another spelling": _request(
        "http://plain.example/", "Transfer-Encoding: xchunked", method="POST", body="0\r\n\r\n"
    ),
    "a bare line feed in a field": _request("http://plain.example/", "X: a\nHost: evil.example"),
    "a bare carriage return in a field": _request("http://plain.example/", "X: a\rHost: evil.example"),
    "a space before the colon": _request("http://plain.example/", "Host : evil.example"),
    "a nul": _request("http://plain.example/", "X: a\0b"),
    "a space in the target": _request("http://plain.example/ x"),
    "a method with a line": b"GET\r\nX http://plain.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": b"GET http://plain.example/ HTTP/1.1\r\n\r\n",
    "two hosts": _request("http://plain.example/", "Host: evil.example"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "SOCKS 5": b"\5\1\0",
    "SOCKS 4": b"\4\1\1\xbb\x7f\0\0\1\0",
    "TLS": b"\x16\3\1\0\x05hello",
    "a head without end": b"GET http://plain.example/ HTTP/1.1\r\n" + b"X: y\r\n" * 5000,
    "an origin's form": _request("/", "Host: plain.example"),
    "an asterisk": _request("*", method="OPTIONS"),
    "https in absolute form": _request("https://plain.example/"),
    "another scheme": _request("ftp://plain.example/"),
    "a file": _request("file:///etc/passwd"),
    "a unix socket": _request("http+unix://%2Fvar%2Frun%2Fdocker.sock/"),
    "a fragment": _request("http://plain.example/#@evil.example"),
    "credentials": _request("http://plain.example@evil.example/"),
    "credentials of a port": _request("http://plain.example:80@evil.example/"),
    "a backslash": _request("http://plain.example\\@evil.example/"),
    "no name": _request("http:///path"),
    "an empty port": _request("http://plain.example:/"),
}


@pytest.mark.parametrize("sent", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_a_request_that_could_be_read_in_two_ways_goes_nowhere(network: Network, upstream: Server, sent: bytes) -> None:
    back = network.say(sent)
    assert back[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 501") or b"".join(upstream.got) == b""
    assert not any(b"evil" in got for got in upstream.got)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"502"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", b"502"),
        (b"no http at all\r\n\r\n", b"502"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"502"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil its end", b"200"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"204"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"404"),
    ],
)
def test_an_answer_is_read_as_strictly(keep: Keep, open_network: OpenNetwork, answer: bytes, status: bytes) -> None:
    server = keep(Server(answer=answer, takes=_is_whole))
    network = open_network([f"127.0.0.1:{server.port}"])
    back = network.say(_request(f"http://127.0.0.1:{server.port}/", "Connection: close"))
    assert back[9:12] == status


def test_a_name_that_is_listed_for_tls_only_says_so(network: Network, upstream: Server) -> None:
    back = network.say(_request(f"http://{NAME}/"))
    assert back.startswith(b"HTTP/1.1 403 ")
    assert b"for https:// only" in back
    assert upstream.got == []
