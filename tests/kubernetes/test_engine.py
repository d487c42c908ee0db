"""What is an engine of pods' own: failures of a start, what is left, pools, rights, and where output does not go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import docker
from agent_tools import CodeInterpreter, Sandbox
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.kubernetes.api import Api
from agent_tools.engines.kubernetes.engine import CLAIMED, KubernetesEngine
from agent_tools.engines.kubernetes.warm_pods import pool
from agent_tools.errors import EngineUnavailable, SandboxStartError
from agent_tools.machine.owner import Owner
from agent_tools.results.execution import Died, Restarted
from agent_tools.runtime.runtime import Runtime
from tests.contract.images import image_of
from tests.kubernetes.conftest import FakeClusterProcess, engine_on
from tests.unit.engines.kubernetes.specs import cluster_at

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]
ENDED = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"finishedAt": "2020-01-01T00:00:00Z"}}}]}


@pytest.fixture
def new_engine(cluster: FakeClusterProcess) -> Iterator[Callable[..., KubernetesEngine]]:
    with ExitStack() as stack:

        def make(**options: object) -> KubernetesEngine:
            engine = engine_on(cluster, **options)
            stack.callback(engine.api.close)
            return engine

        yield make


def asked(engine: KubernetesEngine, **isolation: object) -> SandboxSpec:
    limits = Isolation(**isolation)  # type: ignore[arg-type]
    spec = SandboxSpec(image_of(engine), None, None, engine.guest(), limits, Owner.current().labels)
    return replace(spec, work_dir_bytes=2**28)


@pytest.fixture
def sandbox(runtime: Runtime) -> Iterator[Sandbox]:
    with Sandbox({}, runtime=runtime) as sandbox:
        yield sandbox


def test_a_tool_does_all_it_does_elsewhere(runtime: Runtime, work_dir: Path) -> None:
    (work_dir / "in.csv").write_text("a\n1\n2\n")
    with CodeInterpreter({"work_dir": str(work_dir)}, runtime=runtime) as tool:
        assert tool.run("import csv; print(open('in.csv').read().split()[1:])").stdout == "['1', '2']\n"
        tool.run("open('out.txt', 'w').write('from the pod')")
        assert (work_dir / "out.txt").read_text() == "from the pod"
        assert tool.run("import os; os.getuid(), os.getpid() != 1").value == (10001, True)


def test_there_is_no_socket_of_the_internet(sandbox: Sandbox) -> None:
    code = """
import errno, socket
found = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_DGRAM)
    except OSError as exc:
        found.append(errno.errorcode[exc.errno])
found, [end.fileno() > 0 for end in socket.socketpair()]
"""
    assert sandbox.run_code(code).value == (["EAFNOSUPPORT"] * 4, [True, True])


def test_a_network_by_list_has_its_proxy_and_nothing_else(new_engine: Callable[..., KubernetesEngine]) -> None:
    engine = new_engine(network_policy="enforced")
    runtime = Runtime(engine, lambda recipe: image_of(engine))
    code = """
import socket, urllib.request, urllib.error
proxy = socket.create_connection(("127.0.0.1", 3128), 10)
try:
    urllib.request.urlopen("http://not-listed.example.com/", timeout=10)
except urllib.error.HTTPError as exc:
    status = exc.code
status
"""
    with Sandbox({"network": {"allow": ["pypi.org"]}}, runtime=runtime) as sandbox:
        assert sandbox.run_code(code).value == 403
    runtime.close_all()


def test_limits_that_a_pod_has_no_field_for_hold(runtime: Runtime) -> None:
    with Sandbox({"open_files": 200, "file_size": 2**20}, runtime=runtime) as sandbox:
        code = "import resource as r\n[r.getrlimit(each) for each in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE)]"
        assert sandbox.run_code(code).value == [(200, 200), (2**20, 2**20), (0, 0)]


def test_nothing_that_is_printed_reaches_the_log_of_the_node(sandbox: Sandbox, engine: KubernetesEngine) -> None:
    sandbox.run_code("import os\nprint('to stdout')\nos.write(1, b'one')\nos.write(2, b'two')\nos.system('echo three')")
    sandbox.run_command("echo four; echo five >&2")
    session = sandbox._opening.find()
    assert session
    assert session.container
    assert engine.api.text(f"{engine.pods}/{session.container.id}/log", 4096) == ""


def test_code_cannot_look_into_the_streams_bearer(sandbox: Sandbox) -> None:
    code = """
import os
found = {}
for pid in filter(str.isdigit, os.listdir('/proc')):
    if 'hand_over' in open(f'/proc/{pid}/cmdline').read():
        try:
            found[pid] = os.listdir(f'/proc/{pid}/fd')
        except OSError as exc:
            found[pid] = type(exc).__name__
list(found.values())
"""
    assert sandbox.run_code(code).value == ["PermissionError"]


def test_code_that_kills_everything_ends_its_own_sandbox_and_is_told(sandbox: Sandbox) -> None:
    told = [*sandbox.run_code("import os\nos.kill(-1, 9)").outputs]
    for _ in range(2):  # the stream's end may be heard only after the next code was sent over it
        after = sandbox.run_code("1 + 1")
        told += after.outputs
        if after.value is not None:
            break
    assert after.value == 2
    assert any(isinstance(output, (Died, Restarted)) for output in told), told


# -- a start that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "exceeded quota: sandboxes"), (403, "violates PodSecurity 'restricted:latest'"), (422, "Invalid value")],
)
def test_what_the_server_says_is_told(
    cluster: FakeClusterProcess, engine: KubernetesEngine, status: int, message: str
) -> None:
    cluster.tell(refusals=[(status, message)])
    with pytest.raises(SandboxStartError, match=message):
        engine.start(asked(engine))


def test_a_server_that_asks_for_patience_gets_it(cluster: FakeClusterProcess, engine: KubernetesEngine) -> None:
    cluster.tell(refusals=[(429, "slow down"), (429, "slow down")])
    started = engine.start(asked(engine))
    assert started.stdio
    started.stdio.close()
    engine.remove(started)


def test_an_image_that_no_node_can_pull_is_told_at_once(engine: KubernetesEngine) -> None:
    with pytest.raises(SandboxStartError, match=r"ErrImagePull.*docs/kubernetes.md"):
        engine.start(replace(asked(engine), image="agent-tools:0000000000000000"))
    assert engine.strays(Owner.current().labels) == []


def test_a_profile_that_is_not_on_the_node_is_told_at_once(engine: KubernetesEngine) -> None:
    maker = engine.maker
    other = replace(maker.profiles, sealed=replace(maker.profiles.sealed, text="{}"))
    stale = KubernetesEngine(engine.api, replace(maker, profiles=other))
    with pytest.raises(SandboxStartError, match=r"cannot load seccomp profile.*DaemonSet"):
        stale.start(asked(stale))


def test_a_pod_that_is_never_placed_is_given_up(new_engine: Callable[..., KubernetesEngine]) -> None:
    engine = new_engine(start_timeout=1)
    spec = replace(asked(engine), image="agent-tools:never")
    with pytest.raises(SandboxStartError, match=r"within 1 s .*START_TIMEOUT.*Insufficient memory"):
        engine.start(spec)
    assert engine.strays(Owner.current().labels) == []


def test_credentials_that_are_not_accepted_are_told(cluster: FakeClusterProcess, engine: KubernetesEngine) -> None:
    known = cluster_at(engine.api.cluster.config.cluster.server, token="wrong")
    stranger = KubernetesEngine(Api(known, 60), engine.maker)
    with pytest.raises(EngineUnavailable, match="does not accept our credentials"):
        stranger.start(asked(engine))
    stranger.api.close()


def test_a_server_that_is_not_there_is_told(engine: KubernetesEngine) -> None:
    nowhere = KubernetesEngine(Api(cluster_at("http://127.0.0.1:1"), 5), engine.maker)
    with pytest.raises(EngineUnavailable, match="No Kubernetes API server answers"):
        nowhere.start(asked(engine))
    with pytest.raises(EngineUnavailable, match="No Kubernetes API server answers"):
        nowhere.guest()  # as the gateway's /ready asks


# -- what is left ------------------------------------------------------------------------------------------------------


def test_a_sandbox_is_found_by_its_owner_and_gone_when_removed(engine: KubernetesEngine) -> None:
    started = engine.start(asked(engine))
    assert started.stdio
    found = engine.strays(Owner.current().labels)
    assert [(each.id, labels) for each, labels in found] == [(started.id, Owner.current().labels)]
    assert engine.strays({"agent_tools.host": "another"}) == []
    assert engine.last_words(started, asked(engine)) is None
    started.stdio.close()
    for _ in range(2):  # one that is gone is no error
        engine.remove(started)
    assert engine.strays(Owner.current().labels) == []
    assert "its pod is gone" in (engine.last_words(started, asked(engine)) or "")


def test_the_end_of_the_stream_ends_the_pod(engine: KubernetesEngine) -> None:
    started = engine.start(asked(engine))
    assert started.stdio
    started.stdio.close()
    deadline = time.monotonic() + 30
    while engine.last_words(started, asked(engine)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    engine.remove(started)


def test_a_sweep_removes_pods_that_ended_long_ago_of_any_host(
    cluster: FakeClusterProcess, engine: KubernetesEngine
) -> None:
    spec = replace(asked(engine), labels={"agent_tools.host": "a host that is gone"})
    started = engine.start(spec)
    assert started.stdio
    started.stdio.close()
    cluster.tell(statuses={started.id: ENDED})
    engine.strays(Owner.current().labels)
    assert engine.strays(spec.labels) == []


# -- warm pools --------------------------------------------------------------------------------------------------------


def test_a_warm_sandbox_is_taken_and_another_spec_starts_cold(
    cluster: FakeClusterProcess, new_engine: Callable[..., KubernetesEngine]
) -> None:
    engine = new_engine(warm_pool=True)
    cluster.tell(pool=pool(engine.maker, asked(engine), 1))
    runtime = Runtime(engine, lambda recipe: image_of(engine))
    deadline = time.monotonic() + 60
    while not [each for each in _containers(cluster) if each["State"] == "running"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ids: list[str] = []
    for isolation in ({}, {}, {"cpus": 0.5}):
        started = engine.start(asked(engine, **isolation))
        ids.append(started.id)
        assert started.stdio
        assert [each.id for each, _ in engine.strays(Owner.current().labels)] == [started.id]
        assert engine.last_words(started, asked(engine)) is None
        started.stdio.close()
        assert engine.last_words(started, asked(engine)) == "it has ended" or not started.id.startswith(CLAIMED)
        engine.remove(started)
    assert [id_.startswith(CLAIMED) for id_ in ids] == [True, False, False]
    assert _containers(cluster) == []
    runtime.close_all()


def _containers(cluster: FakeClusterProcess) -> list[dict[str, str]]:
    api = docker.APIClient(**docker.utils.kwargs_from_env())
    try:
        found: list[dict[str, str]] = api.containers(filters={"label": f"fake_cluster.url={cluster.url}"})
        return found
    finally:
        api.close()


# -- rights ------------------------------------------------------------------------------------------------------------


def test_it_calls_for_nothing_that_the_manifests_do_not_allow(cluster: FakeClusterProcess) -> None:
    """All that the tests above have called for, and what the role of deploy/kubernetes allows."""
    chart = ROOT / "deploy" / "kubernetes"
    role = next(
        each for each in yaml.safe_load_all((chart / "agent-tools.yaml").read_text()) if each and each["kind"] == "Role"
    )
    allowed = {f"{verb} {name}" for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    called = {call for call in cluster.calls() if "sandbox" not in call}
    assert {"create pods", "watch pods", "create pods/exec", "delete pods"} <= called <= allowed


def test_labels_that_somebody_else_wrote_are_no_harm(engine: KubernetesEngine) -> None:
    from agent_tools.engines.kubernetes.engine import _container, _labels

    for annotation in ("", "[", "7", json.dumps({"a": 1}), "[" * 50_000):
        found = {"metadata": {"name": "a", "annotations": {"agent-tools/labels": annotation}}}
        assert _labels(found) == {}
    assert _labels({}) == _labels({"metadata": []}) == {}
    assert _container({"metadata": {"annotations": {"agent-tools/claim": "c"}}}) == EngineContainer(f"{CLAIMED}c")
