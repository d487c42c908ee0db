"""A fleet by its word, as `engine=` takes it, with the options that no word holds."""

from __future__ import annotations

from agent_tools.errors import InvalidParams
from agent_tools.fleet.fleet import Fleet
from agent_tools.fleet.limits import LEASE_SECONDS, WAIT_SECONDS
from agent_tools.runtime.engines import checked_engine, factory_of

RAY = "ray"


def connect(
    word: str = "ray",
    *,
    hosts_per_node: int = 1,
    lease: float = LEASE_SECONDS,
    patience: float = WAIT_SECONDS,
    copies_files: bool = True,
) -> Fleet:
    """Return a fleet on a Ray cluster, which this process joins if it is in none.

    Args:
        word: 'ray', for the cluster that this process is in, else the one that RAY_ADDRESS names, else the one that
            runs on this machine; or 'ray://HOST:PORT' of a Ray client server.
        hosts_per_node: host processes of each node, which share its slots: 2 or 4 for nodes of more than 16 cores.
        lease: seconds after which a host closes what this process does not renew.
        patience: seconds that a session waits for a free slot where all hosts are full.
        copies_files: keep `work_dir` the same here and there.

    Raises:
        InvalidParams: a value is unusable.
        EngineUnavailable: Ray is not installed, or there is no such cluster. None is started.
    """
    if checked_engine(word).partition("://")[0] != RAY:
        raise InvalidParams(f"engine={word!r:.80} has no fleet: give {RAY!r}, or one with an address.")
    made = factory_of(word)(
        word, hosts_per_node=hosts_per_node, lease=lease, patience=patience, copies_files=copies_files
    )
    assert isinstance(made, Fleet)
    return made
