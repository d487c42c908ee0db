"""A cluster of raylets on this machine, for as long as a measurement takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.integrations.cluster import RayCluster


@contextmanager
def cluster(is_wanted: bool, slots: int = 40) -> Iterator[None]:
    """Be in a cluster of three nodes with so many slots each, if one is wanted. Needs the package ray."""
    if not is_wanted:
        yield
        return
    import ray

    own = RayCluster(slots)
    ray.init(address=own.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()
        own.cluster.shutdown()
