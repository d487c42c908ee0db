"""The settings of the MCP server, beside those of containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from agent_tools.bodies.sign_on import SignOnSettings
from agent_tools.containers.config import (
    ContainersConfig,
    Count,
    LogLevel,
    Port,
    Seconds,
    SecondsToRun,
    Size,
    Some,
    Texts,
    Tier,
    read_as,
)
from agent_tools.containers.keys import check_keys
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class McpLimits:
    """Limits of calls and requests. Times are seconds, sizes bytes."""

    answer_within: Seconds = 45.0
    """The time after which a call is answered with the output so far: clients give up on longer ones."""
    beat: Seconds = 5.0
    """The silence after which a running call sends its progress."""
    max_runs: Some = 64
    """Runs and commands at once; one more is an error."""
    max_timeout: SecondsToRun = 3_600.0
    """The longest time limit that a call may give."""
    max_body_bytes: Size = 32 * MIB
    """The largest request over HTTP."""
    apps: bool = True
    """Clients of MCP Apps are offered a page that shows answers."""
    tasks: bool = True
    """Clients that declare tasks get a task where others get the advice to call `wait`."""


@dataclass(frozen=True, kw_only=True)
class McpConfig(McpLimits, SignOnSettings, ContainersConfig):
    """The settings of a server of its own, on stdio or HTTP.

    Raises:
        InvalidParams: a value cannot be used, or would open the server to the network without a key.
    """

    pool: Count = 0
    preload: Texts = ()
    memory: Tier = "4g"
    timeout: SecondsToRun = 300.0
    """The default time limit of one call's code or command."""
    container_idle: Seconds = 86_400.0
    """A container unused for so long expires; a day, so that a conversation can continue the next day."""
    host: str = "127.0.0.1"
    port: Port = 8_090
    log_level: LogLevel = "info"
    """The least level of what the server over HTTP logs; `warning` leaves out requests."""
    api_keys: Texts = field(default=(), repr=False)
    """The keys that clients over HTTP may use. Each owns its containers, and sees no other's."""

    @property
    def has_many_keys(self) -> bool:
        """There may be several keys, which share what there is."""
        return len(self.api_keys) > 1 or bool(self.oidc_issuer)

    @model_validator(mode="after")
    def _check_keys(self) -> McpConfig:
        check_keys(self.api_keys, self.host, with_others=bool(self.oidc_issuer))
        return self

    @model_validator(mode="after")
    def _check_timeout(self) -> McpConfig:
        if self.timeout > self.max_timeout:
            raise InvalidParams(
                f"timeout={self.timeout:g} is more than max_timeout={self.max_timeout:g}: raise that, too."
            )
        return self


def read_config(given: Mapping[str, Any], address: str | None = None) -> McpConfig:
    """Return a configuration from values or their text, by name, and the HOST:PORT to listen on, if there is one.

    Raises:
        InvalidParams: a name is unknown, or a value cannot be used.
    """
    if "oidc_groups" in given:
        raise InvalidParams(
            "oidc_groups is a setting of the gateway, whose `agent-tools keys add NAME --group GROUP` names groups: "
            "`agent-tools serve` has MCP at /mcp. A server of its own lets in every user of the provider."
        )
    if address is None:
        return read_as(McpConfig, given)
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise InvalidParams(f"{address!r:.60} is no address: write HOST:PORT, such as 127.0.0.1:8090.")
    return read_as(McpConfig, {**given, "host": host.strip("[]"), "port": port})
