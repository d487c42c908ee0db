"""The MCP servers that requests may name: the operator lists them, and the addresses that they may have.

Clients choose the servers in requests, so the list is empty by default. At every connection, a listed name must have a
public address, or one in a block that the operator lists as well. Connections without TLS go only to the operator's own
network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from agent_tools.engines.network import PLAIN_PORT, TLS_PORT, NetworkPolicy, Target, read_target
from agent_tools.errors import AgentToolsError
from agent_tools.gateway.config import GatewayConfig
from agent_tools.machine.addresses import addresses_of, ascii_name, checked_addresses, is_public

MAX_SERVERS = 8  # of one request
MAX_URL = 2_048  # characters


class ServerNotAllowed(AgentToolsError):
    """The gateway may not connect to the server. The message names its host and port, never a path or a query."""


class AllowedServers:
    """The servers of one list. Thread-safe.

    Args:
        servers: names and addresses, with ports, as for an egress allowlist.
        private: blocks of addresses beside the public internet in which the names may lie.
        look_up: returns the addresses of a name.

    Raises:
        InvalidParams: an entry cannot be used.
    """

    def __init__(
        self,
        servers: Sequence[str],
        private: Sequence[str] = (),
        look_up: Callable[[str, int], list[str]] = addresses_of,
    ) -> None:
        self._policy = NetworkPolicy.read({"allow": list(servers), "private": list(private)})
        self._look_up = look_up

    @classmethod
    def of(cls, config: GatewayConfig) -> AllowedServers | None:
        """Return the servers that a gateway lists; None if there are none."""
        listed = config.mcp_servers
        return cls(listed, config.mcp_private) if listed else None

    def target(self, url: str) -> Target:
        """Return the host and port of a URL that is listed.

        Raises:
            ServerNotAllowed: it is no URL of a server, or is not listed.
        """
        try:
            parts = urlsplit(url[: MAX_URL + 1])
            port = parts.port or (TLS_PORT if parts.scheme == "https" else PLAIN_PORT)
        except ValueError:
            raise ServerNotAllowed("That is no URL.") from None
        if len(url) > MAX_URL or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerNotAllowed(f"Give an http(s) URL of at most {MAX_URL:,} characters.")
        if "@" in parts.netloc:
            raise ServerNotAllowed("The URL holds credentials: send them as 'authorization' or in 'headers'.")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else ascii_name(parts.hostname)
        target = read_target(host, port)
        if target is None or not self._policy.permits(target):
            shown = f"{parts.hostname[:80]}:{port}"
            raise ServerNotAllowed(f"{shown} is not one of the servers that this gateway may connect to (mcp_servers).")
        return target

    def address(self, url: str) -> str:
        """Look up the host of a listed URL, and return an address to connect to. It waits for the network.

        Raises:
            ServerNotAllowed: it has no address or a forbidden one, or is public and without TLS.
        """
        target = self.target(url)
        try:
            addresses = [target.host]
            if not target.is_address:
                addresses = checked_addresses(target.host, target.port, self._policy.may_lie_at, self._look_up)
        except LookupError:
            raise ServerNotAllowed(f"{target} has no address.") from None
        except PermissionError:
            refused = f"{target} has a private or reserved address, which is not listed (mcp_private)."
            raise ServerNotAllowed(refused) from None
        if urlsplit(url).scheme == "http" and any(map(is_public, addresses)):
            raise ServerNotAllowed(f"{target} is on the public internet: give an https URL.")
        return addresses[0]
