"""The engine of pods on the fake cluster (tests/fake_cluster), for the contract and for what is its own.

With AGENT_TOOLS_TEST_CLUSTER, the name of a context, the contract is kept by that cluster: scripts/kind-test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.kubernetes.api import Api
from agent_tools.engines.kubernetes.engine import KubernetesEngine
from agent_tools.engines.kubernetes.options import KubernetesOptions
from agent_tools.engines.kubernetes.pod import pod_maker
from agent_tools.runtime import engine_lookup
from agent_tools.runtime.kubernetes_runtime import kubernetes_engine
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.images import image_of
from tests.fake_cluster.server import TOKEN
from tests.unit.engines.kubernetes.specs import cluster_at

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
    known = cluster_at(cluster.url, token=TOKEN)
    chosen = KubernetesOptions(**options)  # type: ignore[arg-type]
    return KubernetesEngine(Api(known, chosen.timeout), pod_maker(chosen, known.config.namespace))


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[KubernetesEngine]:
    context = os.environ.get("AGENT_TOOLS_TEST_CLUSTER")
    if context:
        engine = kubernetes_engine(f"kubernetes://{context}/sandboxes")
    else:
        engine = engine_on(request.getfixturevalue("cluster"))
    yield engine
    engine.api.close()


@pytest.fixture
def kubeconfig(cluster: FakeClusterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kubeconfig for the cluster; what its engine made and holds is gone after the test."""
    path = tmp_path / "config"
    content = {
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": cluster.url}}],
        "users": [{"name": "me", "user": {"token": TOKEN}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "sandboxes"}}],
    }
    path.write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "kubernetes")
    monkeypatch.setattr(engine_lookup, "_runtimes", {})
    yield path
    for runtime in engine_lookup._runtimes.values():
        runtime.close_all()
        assert isinstance(runtime.engine, KubernetesEngine)
        runtime.engine.api.close()


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
