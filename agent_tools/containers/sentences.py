"""Sentences for a model on the contents and the network of containers."""

from __future__ import annotations

from agent_tools.containers.config import ContainersConfig
from agent_tools.engines.image_versions import contents_told
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.recipe import Recipe
from agent_tools.engines.volumes import GUEST_VOLUMES


def contents(config: ContainersConfig) -> str:
    """Return sentences on the Python and the libraries that a container has, and where volumes are.

    Not every key may use each volume, so none is named.
    """
    volumes = f" Shared folders, if there are any, are in {GUEST_VOLUMES}." if config.volumes else ""
    return contents_told(Recipe.read(config.packages, config.debian_packages, config.flavour)) + volumes


def reach(network: str) -> str:
    """Return a sentence on the hosts that the code can reach; `network` is domains separated by spaces."""
    if not network:
        return "There is no network access."
    packages = " `%pip install` works." if NetworkPolicy.read({"allow": network.split()}).has_packages else ""
    return f"Of the network, only these hosts can be reached: {', '.join(network.split())}.{packages}"
