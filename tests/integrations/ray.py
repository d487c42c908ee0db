"""Ray: sandboxes on three nodes of a cluster, and what is left when nodes, their processes and callers are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

from agent_tools import CodeInterpreter, Sandbox
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.ray.cluster import NodeFacts, RayNodes, facts_of, running
from agent_tools.engines.ray.engine import NodesEngine
from agent_tools.errors import EngineError, EngineUnavailable, HostFull, KernelDied, SandboxGone
from agent_tools.machine.owner import same_host
from agent_tools.results.execution import Died, Error, Restarted
from agent_tools.runtime.ray_runtime import ray_runtime
from agent_tools.runtime.runtime import Runtime
from tests.integrations.cluster import RayCluster

SLOTS = 4
SLEEP = "print('on', flush=True)\nimport time\ntime.sleep(100)"
CALLER = """
import sys, ray
from agent_tools import Sandbox
from agent_tools.runtime.ray_runtime import ray_runtime
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
runtime = ray_runtime()
boxes = [Sandbox(runtime=runtime) for _ in range(3)]
for box in boxes[1:]:
    box.run_code("1")
for output in boxes[0].stream("print('on', flush=True); import time; time.sleep(100)", 120):
    print("ready", flush=True)
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster(SLOTS)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.cluster.shutdown()


@pytest.fixture
def runtime(cluster: RayCluster) -> Iterator[Runtime]:
    """A runtime on all nodes, which hold nothing before and after."""
    cluster.whole()
    runtime = ray_runtime(patience=3.0)
    until(lambda: len(endpoints(runtime)) == cluster.count, "all nodes have a process", 120)
    yield runtime
    runtime.close_all()
    until(lambda: containers() == set(), "no container is left", 30)
    until(lambda: sum(each.taken for each in facts().values()) == 0, "no slot is taken", 30)


def until(is_so: Callable[[], bool], what: str, seconds: float) -> float:
    """Wait until something is so; return the seconds that it took."""
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() - started < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - started


PIDS: set[int] = set()
"""The processes of nodes that were seen."""


def facts() -> dict[str, NodeFacts]:
    """Return the facts of all nodes that answer, by their names."""
    found: dict[str, NodeFacts] = {}
    with contextlib.suppress(EngineUnavailable):  # a control store that was restarted is another cluster's
        for node, actor in running().items():
            with contextlib.suppress(EngineUnavailable):
                found[node[:12]] = facts_of(actor)
                PIDS.add(found[node[:12]].pid)
    return found


def containers() -> set[str]:
    """Return the containers of every process of a node that was seen."""
    found = DockerEngine().strays(same_host())
    return {container.id for container, labels in found if int(labels["agent_tools.owner"].split("-")[0]) in PIDS}


def endpoints(runtime: Runtime) -> Any:
    assert isinstance(runtime.engine, NodesEngine)
    facts()
    return runtime.engine._nodes.endpoints()


def node_of(sandbox: Sandbox) -> str:
    assert sandbox.container
    return sandbox.container.id.split("/")[0]


def on_node(runtime: Runtime, name: str) -> Sandbox:
    """Return a sandbox that lives on this node."""
    facts()
    for _ in range(3 * SLOTS):
        sandbox = Sandbox(runtime=runtime)
        sandbox.start()
        if node_of(sandbox) == name:
            return sandbox
    raise AssertionError("no sandbox is placed on this node")


def test_all_that_a_sandbox_can_do(runtime: Runtime) -> None:
    def add(a: int, b: int) -> int:
        return a + b + (0 * os.getpid())

    with Sandbox(runtime=runtime, hostcalls=[add]) as sandbox:
        assert sandbox.run_code("x = 41\nprint('hi')\nx + 1").outputs[0].text == "hi\n"
        assert sandbox.run_code("print(x, await add(3, 4))").stdout == "41 7\n"
        (sandbox.workspace.path / "in.csv").write_text("a,b\n1,2\n")
        execution = sandbox.run_code("open('out.csv', 'w').write(open('in.csv').read().upper())")
        assert (sandbox.workspace.path / "out.csv").read_text() == "A,B\n1,2\n"
        assert [change.name for change in execution.changes] == ["out.csv"]
        sandbox.write_file("large.bin", b"q" * 20_000_000)
        assert sandbox.read_file("large.bin") == b"q" * 20_000_000
        assert sandbox.run_command("wc -c < large.bin").stdout == b"20000000\n"
        process = sandbox.start_command("read word; echo got $word", stdin=b"")
        process.write_stdin(b"it\n")
        assert process.wait(20).stdout == b"got it\n"
        sandbox.run_code("x = 0")
        sandbox.undo()
        assert sandbox.run_code("x").value == 41
        with sandbox.fork() as fork:
            assert fork.run_code("x + 1").value == 42
        with Sandbox(runtime=runtime) as other:
            other.load(sandbox.save(variables=True))
            assert other.run_code("x").value == 41
            assert node_of(other) != node_of(sandbox)
        assert sandbox.run_code("1/0").error.name == "ZeroDivisionError"
        assert sandbox.run_code("while True: pass", timeout=1).error
        assert sandbox.run_code("import os; os._exit(3)").error
        assert sandbox.run_code("x").value == 41


def test_the_tool_works_through_the_word(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "ray")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data.csv").write_text("a,b\n1,2\n3,4\n")
    with CodeInterpreter({"work_dir": str(tmp_path / "work")}) as tool:
        assert "\n2\n" in tool.call("df = pd.read_csv('data.csv')\nprint(len(df))")
        execution = tool.run("df.plot(); plt.show()")
        assert Path(execution.figures[0]).stat().st_size > 1000
        assert "time limit" in tool.call("while True: pass", timeout=1)
        assert tool.run("df.shape").value == (2, 2)
    from agent_tools.runtime.engine_lookup import shared_runtime

    shared_runtime("ray").close_all()


def test_streams_arrive_as_they_are_made_and_cancelling_keeps_variables(runtime: Runtime) -> None:
    with Sandbox({"limits": {"kill_grace": 10.0}}, runtime=runtime) as sandbox:
        sandbox.start()
        code = "import time\nfor i in range(4):\n    print(i, flush=True)\n    time.sleep(0.5)"
        arrived = [time.monotonic() for _ in sandbox.stream(code)]
        assert len(arrived) >= 4
        assert arrived[-1] - arrived[0] > 1.0
        cancelled = threading.Event()
        outputs = []
        for output in sandbox.stream("x = 5\nprint('on', flush=True)\nwhile True: pass", 60, cancelled):
            outputs.append(output)
            sandbox.cancel(cancelled)
        assert isinstance(outputs[-1], (Error, Died))
        assert sandbox.run_code("x", timeout=20).value == 5


def test_a_pool_is_ready_and_all_nodes_full_says_so(runtime: Runtime, cluster: RayCluster) -> None:
    with Sandbox({"pool": 2}, runtime=runtime) as sandbox:
        assert sandbox.prepare_pool(60) == 2
        assert sandbox.run_code("1").value == 1
    runtime.close_pools()
    until(lambda: sum(each.taken for each in facts().values()) == 0, "no slot is taken", 30)
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(Sandbox(runtime=runtime)) for _ in range(cluster.count * SLOTS)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda box: box.run_code("6 * 7").value, boxes)) == [42] * len(boxes)
        assert {each.taken for each in facts().values()} == {SLOTS}
        with pytest.raises(HostFull, match="Close sandboxes, or add nodes"):
            Sandbox(runtime=runtime).start()


def test_a_killed_process_of_a_node_ends_its_sandboxes_and_says_so(runtime: Runtime) -> None:
    with Sandbox(runtime=runtime) as sandbox:
        sandbox.run_code("x = 1")
        pid = facts()[node_of(sandbox)].pid
        before = containers()
        stream = sandbox.stream(SLEEP, 120)
        next(stream)
        os.kill(pid, signal.SIGKILL)
        rest = list(stream)
        assert any(isinstance(each, Died) and "connection to the node" in each.reason for each in rest), rest
        until(lambda: not before & containers(), "its containers are gone", 30)
        again = sandbox.run_code("print('x' in globals())")
        assert isinstance(again.outputs[0], Restarted)
        assert again.stdout == "False\n"
    until(lambda: len(facts()) == 3, "Ray has restarted it", 120)


def test_a_sandbox_lost_between_two_runs_is_told_by_the_next(runtime: Runtime) -> None:
    with Sandbox(runtime=runtime) as sandbox:
        sandbox.run_code("x = 1")
        os.kill(facts()[node_of(sandbox)].pid, signal.SIGKILL)
        until(lambda: not sandbox.is_alive, "the end of the connection is seen", 30)
        first = sandbox.run_code("print('x' in globals())").outputs[0]
        assert isinstance(first, Restarted)
        assert "the connection to the node" in first.reason
    until(lambda: len(facts()) == 3, "Ray has restarted it", 120)


def test_a_lost_node_is_passed_over(runtime: Runtime, cluster: RayCluster) -> None:
    worker = cluster.workers[0]
    sandbox = on_node(runtime, worker.node_id[:12])
    stream = sandbox.stream(SLEEP, 120)
    next(stream)
    cluster.lose(worker)
    assert any(isinstance(output, Died) for output in list(stream))
    started = time.monotonic()
    assert isinstance(sandbox.run_code("1").outputs[0], Restarted)
    assert time.monotonic() - started < 60
    assert node_of(sandbox) != worker.node_id[:12]


def test_a_killed_caller_leaves_nothing(runtime: Runtime, cluster: RayCluster) -> None:
    facts()
    command = [sys.executable, "-c", CALLER, cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == "ready\n"
        assert len(containers()) == 3
        caller.kill()
        assert until(lambda: not containers(), "its containers are gone", 30) < 30
    until(lambda: sum(each.taken for each in facts().values()) == 0, "no slot is taken", 30)


@pytest.mark.timeout(400)
def test_uses_with_kills_leave_nothing(runtime: Runtime, cluster: RayCluster) -> None:
    rng = random.Random(7)
    ended = threading.Event()

    def kill_now_and_then() -> None:
        while not ended.wait(rng.uniform(6, 10)):
            if found := facts():
                os.kill(rng.choice(list(found.values())).pid, signal.SIGKILL)

    def use(_: int) -> str:
        try:
            with Sandbox(runtime=patient) as sandbox:
                execution = sandbox.run_code("print('done')")
                return execution.stdout or next(type(each).__name__ for each in execution.outputs)
        except (EngineError, KernelDied, SandboxGone) as exc:
            return type(exc).__name__

    killer = threading.Thread(target=kill_now_and_then, daemon=True)
    killer.start()
    patient = ray_runtime(patience=60.0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(use, range(30)))
    ended.set()
    killer.join()
    patient.close_all()
    assert found.count("done\n") > 15, found
    known = {"done\n", "Died", "KernelDied", "SandboxGone", "SandboxStartError", "NodeUnreachable", "HostFull"}
    assert set(found) <= known, found
    until(lambda: len(facts()) == cluster.count, "all nodes have a process again", 120)


@pytest.mark.timeout(300)
def test_a_stopped_process_of_a_node_holds_nobody_up(runtime: Runtime) -> None:
    with Sandbox(runtime=runtime) as sandbox:
        sandbox.run_code("x = 1")
        name = node_of(sandbox)
        pid = facts()[name].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            assert sandbox.run_code("print(1)", timeout=3).error
            assert time.monotonic() - started < 30
            with Sandbox(runtime=runtime) as another:
                assert another.run_code("1").value == 1
                assert node_of(another) != name
        finally:
            os.kill(pid, signal.SIGCONT)


def test_idle_processes_end(cluster: RayCluster) -> None:
    from click.testing import CliRunner

    from agent_tools.cli.fleet import down

    assert CliRunner().invoke(down, []).exit_code == 0
    assert len(RayNodes(idle_end=1.0).endpoints()) == cluster.count
    until(lambda: not running(), "processes that nobody uses have ended", 60)


def test_the_command_line_shows_starts_and_ends_nodes(runtime: Runtime, cluster: RayCluster) -> None:
    from click.testing import CliRunner

    from agent_tools.cli.fleet import fleet as command

    sandbox = Sandbox(runtime=runtime)
    sandbox.run_code("x = 1")
    shown = CliRunner().invoke(command, ["status"]).output
    assert shown.count(cluster.head.node_id[:8]) == 1
    assert shown.count(f" {SLOTS} ") == cluster.count
    assert CliRunner().invoke(command, ["down"]).output == "3 nodes ended\n"
    until(lambda: containers() == set(), "its sandboxes have ended with it", 30)
    assert "no process yet" in CliRunner().invoke(command, ["status"]).output
    started = CliRunner().invoke(command, ["up"]).output
    assert started.count(": agent-tools:") == cluster.count
    assert isinstance(sandbox.run_code("print('x' in globals())").outputs[0], Restarted)


def test_sandboxes_go_on_and_start_while_the_control_store_is_gone(runtime: Runtime, cluster: RayCluster) -> None:
    with Sandbox(runtime=runtime) as sandbox:
        sandbox.run_code("x = 1")
        cluster.head.kill_gcs_server()
        try:
            assert sandbox.run_code("x + 1").value == 2
            assert sandbox.run_code("open('f', 'w').write('z')").value == 1
        finally:
            cluster.head.start_gcs_server()
        assert sandbox.run_code("x + 2").value == 3
