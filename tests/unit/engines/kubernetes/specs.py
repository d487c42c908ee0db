"""Sandboxes and engines' options for the tests of pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightkube.config import models as lightkube
from lightkube.config.kubeconfig import KubeConfig

from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.kubernetes.cluster import Cluster
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.pod import PodMaker, pod_maker
from agent_tools.limits import GIB


def spec(**options: Any) -> SandboxSpec:
    return SandboxSpec(
        image="registry.example.com/agent-tools:0123456789abcdef",
        run_dir=None,
        work_dir=None,
        guest=Guest((10001, 10001), (1000, 1000), shares_sockets=False, shares_files=False),
        isolation=Isolation(**options),
        labels={"agent_tools.host": "boot/pid:[1]", "agent_tools.owner": "4242-123456"},
        work_dir_bytes=GIB,
    )


def maker(**options: Any) -> PodMaker:
    return pod_maker(KubernetesOptions(**options), "sandboxes")


def cluster_at(url: str, *, token: str = "", authorities: Path | None = None, server_name: str = "") -> Cluster:
    """The cluster of an API server at this address."""
    server = lightkube.Cluster(url, str(authorities) if authorities else None)
    user = lightkube.User(token=token or None)
    config = KubeConfig.from_one(cluster=server, user=user, namespace="sandboxes").get()
    assert config
    return Cluster(config, server_name)
