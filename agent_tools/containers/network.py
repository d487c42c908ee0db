"""The network of a container: domains that a client lists and that the operator's allowlist covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.failures import NetworkRefused
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import InvalidParams


def check_network(domains: Sequence[str], config: ContainersConfig) -> str:
    """Return the domains in the format of a container's row, separated by spaces; '' for no network.

    Raises:
        NetworkRefused: this gateway allows no network, or not to one of the domains.
    """
    if not domains:
        return ""
    if not config.allowed_domains:
        raise NetworkRefused("Containers have no network here: network_policy can only be {'type': 'disabled'}.")
    offered = NetworkPolicy.read({"allow": config.allowed_domains})
    for domain in domains:
        try:
            asked = NetworkPolicy.read({"allow": [domain]})
        except InvalidParams as exc:
            raise NetworkRefused(f"{domain!r:.80} is not a domain: give a name such as 'pypi.org'.") from exc
        if not offered.covers(asked):
            known = ", ".join(config.allowed_domains)
            raise NetworkRefused(f"{domain!r:.80} is not allowed here. Containers may be given these: {known:.1000}.")
    return " ".join(dict.fromkeys(domain.lower() for domain in domains))


def network_cfg(network: str, config: ContainersConfig) -> dict[str, Any]:
    """Return the options of a sandbox for a row's network."""
    if not network:
        return {}
    return {"network": {"allow": network.split(), "private": list(config.private_networks)}}


def network_shown(network: str) -> dict[str, Any]:
    """Return a row's network in the format for clients."""
    return {"type": "allowlist", "allowed_domains": network.split()} if network else {"type": "disabled"}
