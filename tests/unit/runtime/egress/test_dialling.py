from __future__ import annotations

from typing import Any

import pytest

from agent_tools.runtime.egress.dialling import Hop, Surroundings
from agent_tools.runtime.egress.refusals import NotReached
from agent_tools.settings import next_hop
from tests.unit.runtime.egress.conftest import Keep, OpenNetwork
from tests.unit.runtime.egress.hellos import hello, server_name
from tests.unit.runtime.egress.network import NAME, Network, Server
from tests.unit.runtime.egress.network import Hop as ProxyServer

INSIDE = [
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
    *("::1", "::", "fe80::1%lo", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_a_listed_name_that_lies_inside_is_refused(server: Server, open_network: OpenNetwork, address: str) -> None:
    network = open_network([f"{NAME}:{server.port}"], address=address, private=[])
    back = network.tunnel(f"{NAME}:{server.port}")
    assert back.startswith(b"HTTP/1.1 403 ")
    assert b"private or reserved address" in back
    assert network.taken()[0].reason == "a private or reserved address"
    assert server.connections == 0


def _network(keep: Keep, allow: list[str], surroundings: Surroundings, **option: Any) -> Network:
    found: Network = keep(Network({"allow": allow, **option}, surroundings))
    return found


def test_one_private_address_among_public_ones_is_too_many(keep: Keep) -> None:
    around = Surroundings(lambda host, port: ["8.8.8.8", "10.0.0.1"], lambda host, port: None)
    assert _network(keep, [NAME], around).tunnel(f"{NAME}:443").startswith(b"HTTP/1.1 403 ")


def test_a_name_is_looked_up_once_and_connected_to_as_it_was_checked(keep: Keep, server: Server) -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    around = Surroundings(lambda host, port: answers.pop(0), lambda host, port: None)
    network = _network(keep, [f"{NAME}:{server.port}"], around, private=["127.0.0.1"])
    assert b"200" in network.tunnel(f"{NAME}:{server.port}", hello(server_name("evil.example")))
    assert len(answers) == 1
    server.await_connection()
    assert network.tunnel(f"{NAME}:{server.port}").startswith(b"HTTP/1.1 403 ")


def test_a_name_that_is_not_listed_is_never_looked_up(keep: Keep) -> None:
    asked: list[str] = []
    around = Surroundings(lambda host, port: asked.append(host) or [], lambda host, port: None)  # type: ignore[func-returns-value]
    network = _network(keep, [NAME], around)
    assert network.tunnel("secret.evil.example:443").startswith(b"HTTP/1.1 403 ")
    assert network.say(b"GET http://secret.evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    assert asked == []


def _fail(host: str, port: int) -> list[str]:
    raise OSError("no such name")


@pytest.mark.parametrize(
    ("look_up", "reason"),
    [(_fail, "no address"), (lambda host, port: [], "no address"), (lambda host, port: ["127.0.0.1"], "no connection")],
)
def test_a_listed_name_that_is_not_reached_is_told_as_failed(keep: Keep, look_up: Any, reason: str) -> None:
    network = _network(keep, [f"{NAME}:1"], Surroundings(look_up, lambda host, port: None), private=["127.0.0.0/8"])
    assert network.tunnel(f"{NAME}:1").startswith(b"HTTP/1.1 502 ")
    (found,) = network.taken()
    assert (found.status, found.reason) == ("failed", reason)


# -- proxies on the way -----------------------------------------------------------------------------------------------


def test_a_proxy_of_the_host_is_the_next_hop(keep: Keep, open_network: OpenNetwork) -> None:
    server = keep(Server(answer=b"welcome"))
    hop = keep(ProxyServer(server))
    network = open_network([NAME], hop=hop)
    assert network.tunnel(f"{NAME}:443", hello(server_name(NAME))).endswith(b"welcome")
    assert hop.got == [f"CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}:443\r\n\r\n".encode()]


def test_a_name_that_lies_inside_is_refused_before_a_proxy_is_asked(keep: Keep, open_network: OpenNetwork) -> None:
    hop = keep(ProxyServer(keep(Server())))
    network = open_network([NAME], hop=hop, address="10.0.0.1", private=[])
    assert network.tunnel(f"{NAME}:443").startswith(b"HTTP/1.1 403 ")
    assert hop.got == []


@pytest.mark.parametrize("status", [b"200", b"200 ", b"200 Connection established"])
def test_a_proxys_answer_may_have_no_reason(keep: Keep, open_network: OpenNetwork, status: bytes) -> None:
    hop = keep(Server(answer=b"HTTP/1.1 " + status + b"\r\n\r\n", takes=lambda got: got.endswith(b"\r\n\r\n")))
    back = open_network([NAME], hop=hop).tunnel(f"{NAME}:443", hello(server_name(NAME)))  # whose end it waits for
    assert back.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Who are you\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nmore",
        b"HTTP/1.1 200\r\n",
        b"HTTP/1.1 \r\n\r\n",
        b"SSH-2.0\r\n\r\n",
        b"x" * 10_000,
    ],
)
def test_a_proxy_that_does_not_connect_is_told_as_a_failure(
    keep: Keep, open_network: OpenNetwork, answer: bytes
) -> None:
    hop = keep(Server(answer=answer, takes=lambda got: got.endswith(b"\r\n\r\n")))
    assert open_network([NAME], hop=hop).tunnel(f"{NAME}:443").startswith(b"HTTP/1.1 502 ")


def test_a_proxys_url_is_read_with_its_credentials() -> None:
    assert Hop.read("http://user:p%40ss@proxy.corp:3128/") == Hop("proxy.corp", 3128, "Basic dXNlcjpwQHNz")
    assert Hop.read("proxy.corp:8080") == Hop("proxy.corp", 8080)
    assert Hop.read("http://größe.corp:8080") == Hop("xn--gre-6ka8i.corp", 8080)
    for url in ("socks5://proxy.corp:1080", "https://proxy.corp", "http://", "http://a:b:c"):
        with pytest.raises(NotReached):
            Hop.read(url)


@pytest.mark.parametrize(
    ("environ", "host", "found"),
    [
        ({}, "a.org", None),
        ({"HTTPS_PROXY": "http://p"}, "a.org", "http://p"),
        ({"https_proxy": "http://q", "HTTPS_PROXY": "http://p"}, "a.org", "http://q"),
        ({"ALL_PROXY": "http://p"}, "a.org", "http://p"),
        ({"HTTP_PROXY": "http://p"}, "a.org", None),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "b.org, a.org"}, "a.org", None),
        ({"HTTPS_PROXY": "http://p", "no_proxy": ".a.org"}, "x.a.org", None),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*.a.org"}, "x.a.org", None),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "a.org:443"}, "a.org", None),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "a.org:80"}, "a.org", "http://p"),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "a.org"}, "ba.org", "http://p"),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, "a.org", None),
    ],
)
def test_the_next_hop_is_what_the_environment_says(environ: dict[str, str], host: str, found: str | None) -> None:
    assert next_hop(host, 443, environ) == found


def test_plain_http_has_a_next_hop_of_its_own() -> None:
    assert next_hop("a.org", 80, {"HTTP_PROXY": "http://p", "HTTPS_PROXY": "http://q"}) == "http://p"
