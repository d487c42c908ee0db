"""The engine `ray`: a fleet on the Ray cluster that this process is in, or that an address names."""

from __future__ import annotations

import ray

from agent_tools.errors import EngineUnavailable, InvalidParams
from agent_tools.fleet.fleet import Fleet
from agent_tools.fleet.limits import IDLE_END_SECONDS, LEASE_SECONDS, MAX_HOSTS_PER_NODE, WAIT_SECONDS
from agent_tools.fleet.ray.hosts import NAMESPACE, RayHosts


def ray_fleet(
    word: str = "ray",
    *,
    hosts_per_node: int = 1,
    lease: float = LEASE_SECONDS,
    patience: float = WAIT_SECONDS,
    copies_files: bool = True,
    idle_end: float = IDLE_END_SECONDS,
) -> Fleet:
    """Return a fleet on a Ray cluster; arguments and errors as for `agent_tools.fleet.connect`.

    `idle_end` is in seconds: a host that this process made ends after as long without use; 0 for never.
    """
    if not 1 <= hosts_per_node <= MAX_HOSTS_PER_NODE:
        raise InvalidParams(f"hosts_per_node={hosts_per_node!r:.40} is not usable: give 1 to {MAX_HOSTS_PER_NODE}.")
    join(word)
    hosts = RayHosts(hosts_per_node=hosts_per_node, lease=lease, idle_end=idle_end)
    return Fleet(hosts, lease=lease, patience=patience, copies_files=copies_files)


def join(word: str) -> None:
    """Join the cluster that a word names, if this process is in none.

    Raises:
        EngineUnavailable: it does not answer.
    """
    if ray.is_initialized():
        return
    address = word if "://" in word else "auto"
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ImportError, OSError, RuntimeError, ValueError) as exc:
        raise EngineUnavailable(
            f"There is no Ray cluster at {address!r} ({exc!r:.200}). Start one (`ray start --head "
            """--resources='{"sandbox": 20}'`), set RAY_ADDRESS, or name it: engine='ray://HOST:10001'."""
        ) from exc
