"""A Ray cluster of several raylets on this machine, each with slots for sandboxes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

FIRST_PORT = 46_000
PATIENT = {
    "raylet_start_wait_time_s": "600",
    "worker_register_timeout_seconds": "600",
    "agent_register_timeout_ms": "600000",
    "enable_metrics_collection": "0",
    "health_check_period_ms": "5000",
    "health_check_timeout_ms": "20000",
}
"""Ray's settings on a machine that is busy: by its own ones, a raylet ends that is not up in time."""


class RayCluster:
    """A head and workers. A worker that was removed is put back by `whole`."""

    def __init__(self, slots: int, workers: int = 2) -> None:
        os.environ.update({f"RAY_{name}": value for name, value in PATIENT.items()})
        from ray.cluster_utils import Cluster

        _write_ports_early()
        self._slots, self._wanted, self._count = slots, workers, 0
        self.cluster = Cluster()
        self.head = self.add()
        self.workers = [self.add() for _ in range(workers)]
        self.address = self.cluster.address

    @property
    def count(self) -> int:
        """The number of nodes."""
        return 1 + len(self.workers)

    def add(self) -> Any:
        """Add a node. A port that is given is not waited for, as one that Ray chooses is."""
        names = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port", "metrics_export_port")
        ports = {name: FIRST_PORT + 10 * self._count + number for number, name in enumerate(names)}
        self._count += 1
        return self.cluster.add_node(
            num_cpus=1,
            resources={"sandbox": self._slots},
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            **ports,
        )

    def lose(self, worker: Any) -> None:
        """Kill a worker with all that runs on it."""
        self.workers.remove(worker)
        self.cluster.remove_node(worker, allow_graceful=False)

    def whole(self) -> None:
        """Have all nodes again."""
        while len(self.workers) < self._wanted:
            self.workers.append(self.add())


def _write_ports_early() -> None:
    """Write the ports of a raylet's agents before it starts: it ends if they do not write them within 15 seconds."""
    from ray._private import services
    from ray._raylet import persist_port

    real: Callable[..., Any] = services.start_raylet
    names = ("metrics_agent_port", "dashboard_agent_listen_port", "runtime_env_agent_port", "metrics_export_port")

    def start_raylet(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(real).bind(*args, **kwargs).arguments
        for name in names:
            persist_port(given["session_dir"], given["node_id"], name, given[name])
        return real(*args, **kwargs)

    services.start_raylet = start_raylet
