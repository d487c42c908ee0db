"""Servers that may be spoken to: listed ones, at addresses where they may lie."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import MAX_URL, AllowedServers, ServerNotAllowed

ADDRESSES = {
    "tools.example.com": ["93.184.216.34"],
    "xn--strae-oqa.example.com": ["93.184.216.35"],
    "inner.example.com": ["10.1.2.3"],
    "both.example.com": ["93.184.216.34", "127.0.0.1"],
}
LISTED = ("*.example.com", "*.example.com:80", "127.0.0.1:9000", "[::1]:9000", "other.example.org:8443")


def look_up(host: str, _: int) -> list[str]:
    if host not in ADDRESSES:
        raise OSError("unknown")
    return ADDRESSES[host]


@pytest.mark.parametrize(
    ("url", "private", "address"),
    [
        ("https://tools.example.com/mcp?key=1", (), "93.184.216.34"),
        ("https://TOOLS.example.com:443", (), "93.184.216.34"),
        ("https://straße.example.com/mcp", (), "93.184.216.35"),
        ("https://inner.example.com/", ("10.0.0.0/8",), "10.1.2.3"),
        ("http://inner.example.com/", ("10.0.0.0/8",), "10.1.2.3"),
        ("http://127.0.0.1:9000/mcp", (), "127.0.0.1"),
        ("http://[::1]:9000/mcp", (), "::1"),
    ],
)
def test_listed_servers_have_an_address(url: str, private: tuple[str, ...], address: str) -> None:
    assert AllowedServers(LISTED, private, look_up=look_up).address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://inner.example.com/canary", "mcp_private"),
        ("https://both.example.com/canary", "mcp_private"),
        ("http://tools.example.com/canary", "https"),
        ("https://away.example.com/canary", "no address"),
        ("https://example.com/canary", "mcp_servers"),
        ("https://tools.example.com:8443/canary", "mcp_servers"),
        ("https://other.example.org/canary", "mcp_servers"),
        ("http://127.0.0.1:9001/canary", "mcp_servers"),
        ("http://127.1:9000/canary", "mcp_servers"),
        ("http://2130706433:9000/canary", "mcp_servers"),
        ("https://me:canary@tools.example.com/", "credentials"),
        ("ftp://tools.example.com/canary", "http"),
        ("https:///canary", "http"),
        ("https://tools.example.com:99999/canary", "no URL"),
        ("https://[::1/canary", "no URL"),
        ("https://tools.example.com/" + "a" * MAX_URL, "characters"),
    ],
)
def test_others_are_refused_without_a_word_of_the_path(url: str, why: str) -> None:
    with pytest.raises(ServerNotAllowed, match=why) as caught:
        AllowedServers(LISTED, look_up=look_up).address(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"mcp_servers": ("a b",)}, {"mcp_private": ("10.0.0.0/99",)}], ids=str)
def test_bad_lists_are_refused_at_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        GatewayConfig(upstream="http://localhost/v1", **wrong)
