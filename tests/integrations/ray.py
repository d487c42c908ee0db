"""Ray: sandboxes on the nodes of a cluster, and what is left when hosts, nodes and callers are killed."""

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
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from agent_tools import CodeInterpreter, Sandbox, __version__
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.errors import EngineUnavailable, HostFull, InvalidParams, SessionLost
from agent_tools.fleet import Fleet, connect
from agent_tools.fleet.protocol import END_SECONDS, MAX_HOSTS_PER_NODE
from agent_tools.fleet.ray import hosts as hosts_module
from agent_tools.fleet.ray.hosts import GROUP_OF, THREADS, HostActor, RayHosts, RayLink, running
from agent_tools.machine.owner import same_host
from agent_tools.results.execution import Died, Error, Restarted
from tests.integrations.cluster import TwoNodes

SLOTS = 6
LEASE = 8.0  # seconds
SLEEP = "print('on', flush=True)\nimport time\ntime.sleep(100)"
CALLER = """
import sys, ray
from agent_tools import Sandbox
from agent_tools.fleet import connect
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
sandbox = Sandbox(runtime=connect(lease=float(sys.argv[2])))
for output in sandbox.stream("print('on', flush=True); import time; time.sleep(100)", 120):
    print("ready", flush=True)
"""


@pytest.fixture(scope="session")
def nodes() -> Iterator[TwoNodes]:
    nodes = TwoNodes(SLOTS)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture
def fleet(nodes: TwoNodes) -> Iterator[Fleet]:
    """A fleet on both nodes, whose hosts hold nothing before and after."""
    nodes.whole()
    with connect(lease=LEASE, patience=3.0) as fleet:
        until(lambda: len(fleet.load()) == 2, "both nodes have a host", 120)
        yield fleet
    until(lambda: containers() == set(), "no container is left", 30)


def until(is_so: Callable[[], bool], what: str, seconds: float) -> float:
    """Wait until something is so; return the seconds that it took."""
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() - started < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - started


HOSTS: set[int] = set()
"""The processes of hosts that were seen."""


def containers() -> set[str]:
    """Return the containers of every host that was seen."""
    found = DockerEngine().strays(same_host())
    return {container.id for container, labels in found if int(labels["agent_tools.owner"].split("-")[0]) in HOSTS}


def links(fleet: Fleet) -> dict[str, RayLink]:
    found: dict[str, RayLink] = {}
    for link in fleet._hosts.links():
        with contextlib.suppress(Exception):
            HOSTS.add(link.call("facts", seconds=20).pid)
            found[link.name] = link
    return found


def host_of(fleet: Fleet, sandbox: Sandbox) -> RayLink:
    assert sandbox.container
    return links(fleet)[sandbox.container.id.split("/")[0]]


def on_node(fleet: Fleet, node: Any) -> Sandbox:
    """Return a sandbox that lives on this node."""
    links(fleet)
    for _ in range(SLOTS):
        sandbox = Sandbox(runtime=fleet)
        sandbox.start()
        assert sandbox.container
        if sandbox.container.id.startswith(node.node_id):
            return sandbox
    raise AssertionError("the emptier one of two is never this node")


def test_code_functions_files_and_commands_as_in_any_sandbox(fleet: Fleet) -> None:
    def add(a: int, b: int) -> int:
        return a + b + (0 * os.getpid())

    links(fleet)
    with Sandbox(runtime=fleet, hostcalls=[add]) as sandbox:
        assert sandbox.run_code("x = 41\nprint('hi')\nx + 1").outputs[0].text == "hi\n"
        assert sandbox.run_code("print(x, await add(3, 4))").stdout == "41 7\n"
        (sandbox.workspace.path / "in.csv").write_text("a,b\n1,2\n")
        execution = sandbox.run_code("open('out.csv', 'w').write(open('in.csv').read().upper())")
        assert (sandbox.workspace.path / "out.csv").read_text() == "A,B\n1,2\n"
        assert [change.name for change in execution.changes] == ["out.csv"]
        sandbox.write_file("large.bin", b"q" * 20_000_000)
        assert sandbox.read_file("large.bin") == b"q" * 20_000_000
        assert sandbox.run_command("wc -c < large.bin").stdout == b"20000000\n"
        sandbox.undo()
        assert sandbox.run_code("1/0").error.name == "ZeroDivisionError"


def test_the_tool_and_code_mode_work_through_the_word(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "ray")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "data.csv").write_text("a,b\n1,2\n3,4\n")
    with CodeInterpreter({"work_dir": str(tmp_path / "work")}) as tool:
        assert "\n2\n" in tool.call("df = pd.read_csv('data.csv')\nprint(len(df))")
        execution = tool.run("df.plot(); plt.show()")
        assert Path(execution.figures[0]).stat().st_size > 1000
        assert "time limit" in tool.call("while True: pass", timeout=1)
        assert tool.run("df.shape").value == (2, 2)
    from agent_tools.runtime.engines import shared_runtime

    shared_runtime("ray").close_all()


def test_streams_arrive_as_they_are_made_and_cancelling_keeps_variables(fleet: Fleet) -> None:
    links(fleet)
    with Sandbox({"limits": {"kill_grace": 10.0}}, runtime=fleet) as sandbox:
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
        stream = sandbox.stream(SLEEP, 120)
        next(stream)
        stream.close()
        assert sandbox.run_code("x", timeout=20).value == 5


def test_what_was_reserved_is_there_at_once_and_spread(fleet: Fleet) -> None:
    links(fleet)
    assert fleet.reserve(4) == 4
    until(lambda: sum(load.ready for load in fleet.load().values()) == 4, "all are ready", 60)
    assert [load.taken for load in fleet.load().values()] == [2, 2]
    seconds = []
    for _ in range(4):
        started = time.monotonic()
        sandbox = Sandbox(runtime=fleet)
        sandbox.start()
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 0.2, seconds
    assert fleet.pools.takes["hit"] == 4


def test_a_full_host_makes_way_for_another_and_all_full_says_so(fleet: Fleet) -> None:
    links(fleet)
    assert fleet.reserve(100) == 2 * SLOTS
    assert fleet.reserve(1) == 0
    with pytest.raises(HostFull, match="Close sessions, or add nodes"):
        Sandbox({"memory": 2**30}, runtime=fleet).start()
    fleet.close_pools()
    until(lambda: sum(load.taken for load in fleet.load().values()) == 0, "all slots are free", 60)


def test_a_host_that_is_killed_loses_its_sessions_and_says_so(fleet: Fleet) -> None:
    links(fleet)
    with Sandbox(runtime=fleet) as sandbox:
        sandbox.run_code("x = 1")
        pid = host_of(fleet, sandbox).call("facts").pid
        before = containers()
        stream = sandbox.stream(SLEEP, 120)
        next(stream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SessionLost, match="Variables are lost"):
            next(stream)
        until(lambda: not before & containers(), "its containers are gone", 30)
        again = sandbox.run_code("print('x' in globals())")
        links(fleet)
        assert isinstance(again.outputs[0], Restarted)
        assert again.stdout == "False\n"


def test_a_session_that_was_lost_between_two_runs_is_told_by_the_next(fleet: Fleet) -> None:
    links(fleet)
    with Sandbox(runtime=fleet) as sandbox:
        sandbox.run_code("x = 1")
        session = fleet.find(sandbox.id)
        assert session
        os.kill(host_of(fleet, sandbox).call("facts").pid, signal.SIGKILL)
        until(lambda: session.place is None, "a renewal has found it lost", 60)
        outputs = sandbox.run_code("print('x' in globals())").outputs
        links(fleet)
        assert isinstance(outputs[0], Restarted)


def test_a_node_that_is_lost_is_passed_over(fleet: Fleet, nodes: TwoNodes) -> None:
    sandbox = on_node(fleet, nodes.worker)
    before = containers()
    assert before
    stream = sandbox.stream(SLEEP, 120)
    next(stream)
    nodes.lose_worker()
    with pytest.raises(SessionLost):
        next(stream)
    started = time.monotonic()
    assert isinstance(sandbox.run_code("1").outputs[0], Restarted)
    assert time.monotonic() - started < 30
    assert sandbox.container
    assert sandbox.container.id.startswith(nodes.head.node_id)
    links(fleet)


def test_a_caller_that_is_killed_leaves_nothing(fleet: Fleet, nodes: TwoNodes) -> None:
    links(fleet)
    command = [sys.executable, "-c", CALLER, nodes.address, str(LEASE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == "ready\n"
        assert len(containers()) == 1
        caller.kill()
        assert until(lambda: not containers(), "its container is gone", 30) < 30


@pytest.mark.timeout(400)
def test_opens_and_closes_with_kills_leave_nothing(fleet: Fleet) -> None:
    links(fleet)
    rng = random.Random(7)
    ended = threading.Event()

    def kill_now_and_then() -> None:
        while not ended.wait(rng.uniform(8, 14)):
            with contextlib.suppress(Exception):
                os.kill(rng.choice(list(links(fleet).values())).call("facts", seconds=5).pid, signal.SIGKILL)

    def use(_: int) -> str:
        try:
            with Sandbox(runtime=patient) as sandbox:
                return sandbox.run_code("print('done')").stdout
        except (SessionLost, HostFull, EngineUnavailable) as exc:
            return type(exc).__name__

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    with connect(lease=LEASE, patience=30.0) as patient, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(use, range(24)))
    ended.set()
    killer.join()
    assert found.count("done\n") > 4, found
    assert set(found) <= {"done\n", "SessionLost", "HostFull", "EngineUnavailable"}
    until(lambda: len(links(fleet)) == 2, "both hosts are there again", 120)
    until(lambda: sum(load.taken for load in fleet.load().values()) == 0, "every slot is free", 60)


@pytest.mark.timeout(300)
def test_a_host_that_stands_still_holds_nobody_up(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "SILENCE_SECONDS", 2.0)
    with Sandbox(runtime=fleet) as sandbox, Sandbox(runtime=fleet) as another:
        sandbox.run_code("x = 1")
        link = host_of(fleet, sandbox)
        pid, outputs = link.call("facts").pid, sandbox.stream(SLEEP)
        next(outputs)
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(SessionLost, match="is gone"):
                list(outputs)
            another.run_code("y = 1")  # at the other host
            assert time.monotonic() - started < 30
            assert "x" not in sandbox.run_code("print(*globals())").stdout.split()
        finally:
            os.kill(pid, signal.SIGCONT)
    until(lambda: len(fleet.load()) == 2, "it answers again", 60)
    until(lambda: sum(load.taken for load in fleet.load().values()) == 0, "it has closed what was its own", 60)


@pytest.mark.parametrize("method", ["load", "do", "begin"])
def test_a_host_serves_so_many_calls_of_a_kind_at_once(nodes: TwoNodes, method: str) -> None:
    class Slow:
        def __init__(self) -> None:
            self.now, self.most, self.lock = 0, 0, threading.Lock()

        def greet(self) -> int:
            return self.most

        def __getattr__(self, name: str) -> Callable[[], None]:
            return self.work

        def work(self) -> None:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.5)
            with self.lock:
                self.now -= 1

    class Busy(HostActor):
        def __init__(self) -> None:
            self._host = Slow()  # type: ignore[assignment]

    actor = ray.remote(num_cpus=0, concurrency_groups=THREADS)(Busy).remote()
    link, group = RayLink("busy", actor), GROUP_OF[method]
    ray.get([getattr(actor, group).remote(method) for _ in range(THREADS[group] * 2)])
    assert link.call("greet") == THREADS[group]
    ray.kill(actor)


def test_so_many_calls_of_a_process_wait_at_a_host(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "MAX_PENDING_CALLS", 2)
    name, node = "small", next(iter(hosts_module.nodes()))
    link = RayLink(name, RayHosts()._actor(name, node, 1))
    link.call("greet", __version__)
    pid = link.call("facts").pid
    os.kill(pid, signal.SIGSTOP)
    for _ in range(2):
        link._begin("load", ())
    with pytest.raises(HostFull, match="2 calls of this process wait"):
        link.call("load")
    os.kill(pid, signal.SIGKILL)
    ray.kill(link.actor)


def test_an_end_is_waited_for_so_long_and_hosts_of_a_node_are_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(hosts_module.ray, "get", lambda _, timeout: waited.append(timeout))
    monkeypatch.setattr(hosts_module.ray, "kill", lambda _: None)
    actor = SimpleNamespace(end=SimpleNamespace(remote=lambda: None))
    hosts_module.end(RayLink("host", actor))
    assert waited == [END_SECONDS]
    with pytest.raises(InvalidParams, match=f"give 1 to {MAX_HOSTS_PER_NODE}"):
        connect("ray", hosts_per_node=MAX_HOSTS_PER_NODE + 1)


@pytest.mark.timeout(300)
def test_hosts_per_node_share_its_slots(fleet: Fleet) -> None:
    hosts = RayHosts(hosts_per_node=2, lease=LEASE, idle_end=1.0)
    with Fleet(hosts, lease=LEASE) as several:
        until(lambda: len(several.load()) == 4, "each node has two hosts", 120)
        assert {load.slots for load in several.load().values()} == {SLOTS // 2, SLOTS}
    until(lambda: len(running()) == 2, "those that nobody uses have ended, but for the two that may stay", 120)


def test_an_order_that_finds_no_room_is_sent_later_and_in_its_order(fleet: Fleet) -> None:
    class Slow:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def control(self, method: str, number: int) -> list[int]:
            time.sleep(0.1)
            self.seen += [number] if number else []
            return self.seen

    actor = ray.remote(num_cpus=0)(Slow).options(max_pending_calls=1).remote()
    link = RayLink("slow", actor)
    assert link.call("cancel", 0) == []
    for number in range(1, 9):
        link.tell("cancel", number)

    def seen() -> list[int]:
        with contextlib.suppress(HostFull):
            return list(link.call("cancel", 0))
        return []

    until(lambda: seen() == list(range(1, 9)), "all orders have come", 60)
    ray.kill(actor)


def test_the_command_line_shows_starts_and_ends_hosts(fleet: Fleet, nodes: TwoNodes) -> None:
    from click.testing import CliRunner

    from agent_tools.cli.fleet import fleet as command

    links(fleet)
    sandbox = Sandbox(runtime=fleet)
    sandbox.run_code("x = 1")
    shown = CliRunner().invoke(command, ["status"]).output
    assert shown.count(nodes.head.node_id[:8]) == 1
    assert shown.count(f" {SLOTS} ") == 2
    assert CliRunner().invoke(command, ["down"]).output == "2 hosts ended\n"
    until(lambda: containers() == set(), "its sandboxes have ended with it", 30)
    assert "no host yet" in CliRunner().invoke(command, ["status"]).output
    started = CliRunner().invoke(command, ["up"]).output
    assert started.count(": agent-tools:") == 2
    until(lambda: len(fleet.load()) == 2, "the fleet finds the new hosts", 60)
    with contextlib.suppress(SessionLost):
        sandbox.run_code("1")
    assert sandbox.run_code("print('x' in globals())").stdout == "False\n"
    links(fleet)


def test_sessions_go_on_while_the_control_store_is_gone(fleet: Fleet, nodes: TwoNodes) -> None:
    links(fleet)
    with Sandbox(runtime=fleet) as sandbox:
        sandbox.run_code("x = 1")
        nodes.head.kill_gcs_server()
        try:
            assert sandbox.run_code("x + 1").value == 2
            assert sandbox.run_code("open('f', 'w').write('z')").value == 1
        finally:
            nodes.head.start_gcs_server()
        assert sandbox.run_code("x + 2").value == 3
