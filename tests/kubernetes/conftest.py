"""The engine of pods on the fake cluster (tests/fake_cluster), for the contract and for what is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.kubernetes.cluster.api import Api
from agent_tools.runtime.kubernetes.cluster.credentials import Cluster
from agent_tools.runtime.kubernetes.engine import KubernetesEngine
from agent_tools.runtime.kubernetes.options import KubernetesOptions
from agent_tools.runtime.kubernetes_runtime import pod_maker
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.images import image_of
from tests.fake_cluster.server import TOKEN

ROOT = Path(__file__).resolve().parents[2]


class FakeClusterProcess:
    """The fake cluster, in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_cluster"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()

    def tell(self, **what: object) -> None:
        """Give it refusals, a pool, or statuses of pods."""
        requests.post(f"{self.url}/fake", data=json.dumps(what), timeout=60).raise_for_status()

    def calls(self) -> list[str]:
        """The kinds of calls so far, as VERB RESOURCE."""
        found: list[str] = requests.get(f"{self.url}/fake", timeout=60).json()["calls"]
        return found

    def close(self) -> None:
        self.process.communicate("", timeout=60)


@pytest.fixture(scope="module")
def cluster(docker_engine: DockerEngine) -> Iterator[FakeClusterProcess]:
    cluster = FakeClusterProcess()
    yield cluster
    cluster.close()


def engine_on(cluster: FakeClusterProcess, **options: object) -> KubernetesEngine:
    known = Cluster(cluster.url, "sandboxes", authorization=lambda: f"Bearer {TOKEN}")
    chosen = KubernetesOptions(**options)  # type: ignore[arg-type]
    return KubernetesEngine(Api(known, chosen.timeout), pod_maker(chosen, known.namespace))


@pytest.fixture(scope="module")
def engine(cluster: FakeClusterProcess) -> Iterator[KubernetesEngine]:
    engine = engine_on(cluster)
    yield engine
    engine.api.close()


@pytest.fixture(scope="module")
def transport() -> TransportName:
    return "stdio"


@pytest.fixture(scope="module")
def tag(engine: KubernetesEngine) -> str:
    return image_of(engine)


@pytest.fixture(scope="module")
def runtime(engine: KubernetesEngine, tag: str) -> Iterator[Runtime]:
    runtime = Runtime(engine, lambda packages: tag)
    yield runtime
    runtime.close_all()
