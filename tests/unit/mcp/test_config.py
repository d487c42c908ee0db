"""The settings of the MCP door."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.mcp.config import McpConfig, McpLimits, read_config
from agent_tools.settings import mcp_options


def test_a_call_is_answered_before_clients_give_up_and_beats_before_they_doubt() -> None:
    bounds = McpLimits()
    assert (bounds.answer_within, bounds.beat) == (45, 5)
    assert McpConfig().timeout > bounds.answer_within


def test_every_bound_is_positive() -> None:
    assert [each.name for each in dataclasses.fields(McpLimits) if not getattr(McpLimits(), each.name) > 0] == []


def test_nothing_is_made_ahead_of_the_first_call() -> None:
    assert McpConfig().pool == 0


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:8090", "127.0.0.1", 8090), ("[::1]:1", "::1", 1), ("localhost:0", "localhost", 0)],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    config = read_config({}, address)
    assert (config.host, config.port) == (host, port)


@pytest.mark.parametrize(
    ("given", "address", "reason"),
    [
        ({}, "8090", "write HOST:PORT"),
        ({}, ":8090", "write HOST:PORT"),
        ({}, "127.0.0.1:x", "port='x' is not a number"),
        ({}, "0.0.0.0:80", "give --api-key"),
        ({"nonsense": 1}, None, "no setting 'nonsense'"),
        ({"memory": "3g"}, None, "memory='3g' is not one of"),
        ({"memory": "16g"}, None, "memory=16g is more than max_memory=4g: give max_memory=16g, too"),
        ({"answer_within": "-1"}, None, "answer_within='-1' is negative"),
        ({"api_keys": "secret"}, None, "fewer than 8"),
        ({"oidc_groups": "groups"}, None, "oidc_groups is a setting of the gateway"),
    ],
)
def test_what_cannot_be_used_is_told(given: dict[str, Any], address: str | None, reason: str) -> None:
    with pytest.raises(InvalidParams, match=reason):
        read_config(given, address)


def test_variables_of_the_environment_are_settings() -> None:
    given = mcp_options(
        {"AGENT_TOOLS_MCP_ANSWER_WITHIN": "30", "AGENT_TOOLS_MCP_API_KEYS": "a" * 8 + "," + "b" * 8, "X": "1"}
    )
    config = read_config(given)
    assert (config.answer_within, len(config.api_keys)) == (30, 2)
    assert dict(config.shown())["api_keys"] == "(set)"


def test_sizes_are_bytes_or_text() -> None:
    config = read_config({"max_body_bytes": "1m", "max_container_bytes": "2g", "min_disk_free": "0"})
    assert (config.max_body_bytes, config.max_container_bytes, config.min_disk_free) == (2**20, 2**31, 0)
    with pytest.raises(InvalidParams, match="max_body_bytes='lots' is not a number"):
        read_config({"max_body_bytes": "lots"})
