from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

import pytest

from agent_tools.engines.network import NetworkPolicy, Target, read_host, read_target
from agent_tools.errors import InvalidParams
from agent_tools.limits import EgressLimits
from agent_tools.sandbox.options import Options

SECRET = "Bearer c0ffee"
LIST = [
    "pypi",
    "api.example.com",
    "*.example.org",
    "*.example.net:8443",
    "192.0.2.7:5432",
    "[2001:db8::7]",
    "Bücher.de",
    "straße.de:8443",
    "*.βόλος.com",
]


def policy(**option: Any) -> NetworkPolicy:
    return NetworkPolicy.read({"allow": LIST, **option})


@pytest.mark.parametrize(
    ("target", "is_listed"),
    [
        ("pypi.org:443", True),
        ("files.pythonhosted.org:443", True),
        ("test.pypi.org:443", False),
        ("pypi.org:80", False),
        ("api.example.com:443", True),
        ("API.EXAMPLE.COM.:443", True),
        ("api.example.com:80", False),
        ("api.example.com:8443", False),
        ("x.api.example.com:443", False),
        ("example.com:443", False),
        ("a.example.org:443", True),
        ("a.b.c.example.org:443", True),
        ("example.org:443", False),
        ("evilexample.org:443", False),
        ("example.org.evil.net:443", False),
        ("a.example.net:8443", True),
        ("a.example.net:443", False),
        ("192.0.2.7:5432", True),
        ("192.0.2.7:443", False),
        ("192.0.2.8:5432", False),
        ("[2001:db8::7]:443", True),
        ("[2001:0db8:0:0::7]:443", True),
        ("[2001:db8::8]:443", False),
        ("xn--bcher-kva.de:443", True),
        ("xn--strae-oqa.de:8443", True),
        ("strasse.de:8443", False),
        ("a.xn--nxasmm1c.com:443", True),
        ("a.xn--nxasmq6b.com:443", False),
    ],
)
def test_a_target_is_listed_or_not(target: str, is_listed: bool) -> None:
    found = read_target(target)
    assert found is not None
    assert policy().permits(found) is is_listed


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", "-a.org", "a-.org", "a b.org", "a\n.org", "a/b", "a@b.org", "a%2eorg", "bücher.de"),
        *("127.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.01", "1.2.3", "a.1", "a.0x1"),
        *("::1", "[::1", "[fe80::1%eth0]", "[127.0.0.1]", "[a.org]", "a" * 64 + ".org", ("a" * 60 + ".") * 5 + "org"),
        *("*.example.org", "exa\u0000mple.org", "a.org\u3002", "①.org"),
    ],
)
def test_what_is_no_plain_host_is_none(text: str) -> None:
    assert read_host(text) is None


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("A.org.:0443", Target("a.org", 443)),
        ("[::FFFF:1.2.3.4]:1", Target(str(IPv6Address("::ffff:102:304")), 1)),
        *((text, None) for text in ("a.org", "a.org:", ":443", "a.org:0", "a.org:65536", "a.org:-1", "a.org:+1")),
        *((text, None) for text in ("a.org:4_4", "a.org:٤", "a.org: 443", "a.org:443:443", "[::1]", "a.org:000443")),
    ],
)
def test_an_authority_is_read_strictly(text: str, target: Target | None) -> None:
    assert read_target(text) == target


def test_a_port_may_be_left_out_where_there_is_a_usual_one() -> None:
    assert read_target("a.org", 443) == Target("a.org", 443)
    assert read_target("[::1]", 443) == Target("::1", 443)


def test_a_target_is_written_as_it_is_asked_for() -> None:
    assert str(Target("a.org", 443)) == "a.org:443"
    assert str(Target("::1", 443)) == "[::1]:443"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["pypi"], "give a dict"),
        ({"alow": []}, "no entry 'alow'"),
        ({}, "allow=None"),
        ({"allow": "pypi"}, "give a list of texts"),
        ({"allow": [443]}, "not a text"),
        ({"allow": ["a.org"] * 1001}, "at most 1,000"),
        *(({"allow": [entry]}, "neither a name nor") for entry in ("*", "https://a.org", "a.org/x", "127.1", "")),
        *(({"allow": [entry]}, "two parts or more") for entry in ("*.org", "*.pypi", "*.192.0.2.7")),
        ({"allow": [], "private": ["10.0.0.1/8"]}, "in private"),
        ({"allow": [], "limits": {"max_sent": -1}}, "not a positive number"),
        ({"allow": [], "limits": {"max_speed": 1}}, "max_connections"),
        ({"allow": [], "headers": []}, "not a dict of hosts"),
        ({"allow": ["a.org"], "headers": {"b.org": {}}}, "does not allow on port 443"),
        ({"allow": ["a.org:80"], "headers": {"a.org": {}}}, "does not allow on port 443"),
        *(
            ({"allow": ["a.org"], "headers": {"a.org": added}}, "cannot be sent")
            for added in (
                *({"X": "a\r\nY: b"}, {"X": "a\n"}, {"X\r\n": "a"}, {"X": ""}, {"X": "ü"}, {"X": 1}, {"": "a"}),
                *({"Host": "b.org"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"X": "\x00"}, "X: a"),
            )
        ),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(option: object, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        NetworkPolicy.read(option)


def test_a_secret_is_shown_nowhere() -> None:
    found = policy(headers={"API.example.com": {"Authorization": SECRET}})
    assert found.headers == {"api.example.com": {"authorization": SECRET}}
    assert policy(headers={"bücher.de": {}}).headers == {"xn--bcher-kva.de": {}}
    options = Options.read({"network": {"allow": ["a.org"], "headers": {"a.org": {"Authorization": SECRET}}}})
    assert SECRET not in f"{found} {found!r} {options}"
    with pytest.raises(InvalidParams) as caught:
        policy(headers={"api.example.com": {"Authorization": f"{SECRET}\n"}})
    assert SECRET not in str(caught.value)


BASIC = {"authorization": "Basic YTpiQGM="}
INDEXES = [
    ("", None, "pypi.org:443", {}),
    ("https://pypi.org/simple", None, "pypi.org:443", {}),
    ("https://index.corp/simple/", "https://index.corp/simple/", "index.corp:443", {}),
    ("https://index.corp:8443/a/simple", "https://index.corp:8443/a/simple", "index.corp:8443", {}),
    ("http://index.corp:3141/simple", "http://index.corp:3141/simple", "index.corp:3141", {}),
    ("http://10.1.2.3/simple", "http://10.1.2.3/simple", "10.1.2.3:80", {}),
    (
        "https://a:b%40c@index.corp/simple",
        "http://index.corp/simple",
        "index.corp:443",
        {"authorization": "Basic YTpiQGM="},
    ),
]


@pytest.mark.parametrize(("given", "url", "target", "headers"), INDEXES)
def test_the_package_index_is_the_one_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, given: str, url: str | None, target: str, headers: dict[str, str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", given)
    found = policy(private=[])
    wanted = read_target(target)
    assert wanted
    assert found.permits(wanted)
    assert found.has_packages
    assert (found.index and found.index.url) == url
    assert found.headers.get(wanted.host, {}) == headers
    assert found.may_lie_at("10.0.0.1", wanted) == (url is not None)
    assert not found.may_lie_at("10.0.0.1", read_target("api.example.com:443"))
    assert found.permits(Target("pypi.org", 443)) == (url is None)
    assert "b@c" not in repr(found)
    assert "YTpiQGM" not in repr(found)


@pytest.mark.parametrize("given", ["index.corp", "ftp://index.corp/", "https://", "https://a:5ecret@index.corp:8443/x"])
def test_an_index_that_a_sandbox_cannot_use_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", given)
    with pytest.raises(InvalidParams, match="PIP_INDEX_URL") as caught:
        policy()
    assert "5ecret" not in str(caught.value)
    assert NetworkPolicy.read({"allow": ["example.org"]}).index is None


def test_a_cache_of_packages_is_for_pythons_own_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.corp/simple")
    with pytest.raises(InvalidParams, match="unset PIP_INDEX_URL"):
        policy(packages_cache="/var/cache/wheels")


def test_private_blocks_are_where_listed_names_may_lie_and_open_nothing_themselves() -> None:
    found = policy(private=["10.1.0.0/16", "fd00::/8"])
    assert [found.may_lie_at(address) for address in ("10.1.2.3", "fd00::1", "8.8.8.8")] == [True] * 3
    assert [found.may_lie_at(address) for address in ("10.2.0.1", "127.0.0.1", "::ffff:10.1.2.3")] == [False] * 3
    assert not found.permits(Target("10.1.2.3", 443))


def test_limits_are_read_with_the_list() -> None:
    assert policy(limits={"max_connections": 2}).limits == EgressLimits(max_connections=2)


def test_the_option_is_a_list_or_the_name_of_a_network() -> None:
    assert Options.read({"network": {"allow": ["pypi"]}}).isolation.policy == NetworkPolicy.read({"allow": ["pypi"]})
    assert Options.read({"network": {"allow": ["pypi"]}}).isolation.engine_network == "none"
    assert Options.read({"network": "bridge"}).isolation.policy is None
    assert Options.read({}).isolation.engine_network == "none"
