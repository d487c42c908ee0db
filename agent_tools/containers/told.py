"""Sentences for a model on what containers have and reach."""

from __future__ import annotations

from agent_tools.containers.config import ContainersConfig
from agent_tools.runtime.engines import describe
from agent_tools.runtime.network import NetworkPolicy
from agent_tools.runtime.recipe import Recipe


def contents(config: ContainersConfig) -> str:
    """Return a sentence on the Python and the libraries that a container has."""
    return describe(Recipe.read(config.packages, config.debian_packages, config.flavour))


def reach(network: str) -> str:
    """Return a sentence on what the code reaches; the network is domains between spaces."""
    if not network:
        return "There is no network access."
    packages = " `%pip install` works." if NetworkPolicy.read({"allow": network.split()}).has_packages else ""
    return f"Of the network, only these hosts can be reached: {', '.join(network.split())}.{packages}"
