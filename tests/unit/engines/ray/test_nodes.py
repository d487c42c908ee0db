"""Nodes and their callers: who is served, what crosses, and what ends a sandbox."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.first_process import environment
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.ray import greeting, link, node_keys
from agent_tools.engines.ray.engine import NodesEngine
from agent_tools.engines.ray.greeting import MESSAGE
from agent_tools.engines.ray.node import MAX_STRANGERS, NodeEndpoint, NodeServer
from agent_tools.engines.ray.request import raise_error, read_spec, write_error, write_spec
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import (
    EngineError,
    EngineUnavailable,
    HostFull,
    ImageBuildError,
    InvalidParams,
    SandboxStartError,
)
from agent_tools.guest.wire.framing import HEADER, pack
from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import Died, Restarted
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine
from tests.nodes import LOCAL, FixedNodes, engine_over, new_node
from tests.waiting import until

SPEC = SandboxSpec("none", None, None, Guest.own(shares=False), Isolation(), {})


class CountingEngine(ProcessEngine):
    """Counts starts, and may wait or fail in them."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__(shares_files=False)
        self.failure = failure
        self.may_start = threading.Event()
        self.may_start.set()
        self.specs: list[SandboxSpec] = []

    def start(self, spec: SandboxSpec) -> EngineContainer:
        self.specs.append(spec)
        self.may_start.wait()
        if self.failure:
            raise self.failure
        return super().start(spec)


@pytest.fixture
def new() -> Iterator[Callable[..., NodeServer]]:
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(closing(new_node(*args)))


def connected(endpoint: NodeEndpoint) -> socket.socket:
    plain = socket.create_connection((endpoint.host, endpoint.port), 10)
    return node_keys.calling_tls(endpoint.certificate).wrap_socket(plain, suppress_ragged_eofs=True)


def is_ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection, in whatever way."""
    try:
        return connection.recv(100) == b""
    except OSError:
        return True


def end(engine: NodesEngine, container: EngineContainer) -> None:
    assert container.stdio
    engine.remove(container)
    container.stdio.close()


def session_on(engine: NodesEngine, work_dir: Path) -> Session:
    return Session(engine, SessionSpec("none", work_dir, Isolation(), Limits(min_disk_free=0)))


# -- who is served ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["0" * node_keys.TOKEN_BYTES, "x", ""])
def test_a_wrong_or_short_token_is_no_work(new: Callable[..., NodeServer], token: str) -> None:
    engine = CountingEngine()
    node = new("a", 4, engine)
    with connected(node.endpoint) as connection:
        connection.sendall(token.encode())
        if len(token) == node_keys.TOKEN_BYTES:
            greeting.send_message(connection, {"op": "start", "spec": write_spec(SPEC, None)})
        else:
            socket.socket.shutdown(connection, socket.SHUT_WR)
        assert is_ended(connection)
    assert engine.specs == []
    assert node.taken == 0


def test_a_node_with_another_certificate_is_not_spoken_to(new: Callable[..., NodeServer]) -> None:
    engine = CountingEngine()
    node, other = new("a", 4, engine), new("b")
    false = replace(node.endpoint, certificate=other.endpoint.certificate)
    with pytest.raises(EngineUnavailable, match="does not answer"):
        NodesEngine(FixedNodes(false)).start(SPEC)
    assert engine.specs == []


def test_plain_text_and_silent_connections_hold_nobody_up(new: Callable[..., NodeServer], work_dir: Path) -> None:
    node = new("a")
    with ExitStack() as stack:
        for number in range(MAX_STRANGERS + 20):
            silent = stack.enter_context(socket.create_connection((node.endpoint.host, node.endpoint.port), 10))
            silent.sendall(b"GET / HTTP/1.1\r\n"[: number if number < 20 else number % 5])
        with closing(session_on(engine_over(node), work_dir)) as session:
            assert session.run("print(1)", 30).stdout == "1\n"


def test_a_node_that_ends_since_it_was_idle_takes_no_sandbox_with_it(new: Callable[..., NodeServer]) -> None:
    node = new("a")
    engine = engine_over(node)
    started = engine.start(SPEC)
    assert not node.retire(0.0)
    end(engine, started)
    until(lambda: node.retire(0.0))
    with pytest.raises(HostFull, match="ends"):
        engine.start(SPEC)


def test_a_node_is_not_idle_when_a_sandbox_that_lived_long_has_just_ended(new: Callable[..., NodeServer]) -> None:
    node, lock, retired = new("a"), threading.Lock(), list[bool]()

    class Lock:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            node._lock = lock
            retired.append(node.retire(500.0))

    with node._slot():
        node.used_at -= 1_000.0
        node._lock = Lock()  # type: ignore[assignment]
    assert retired == [False]


@pytest.mark.parametrize(
    "message",
    [b"\xff" * 8, HEADER.pack(MESSAGE, 2**31), *(pack(MESSAGE, data) for data in (b"[]", b"{", b"[" * 200_000))],
    ids=["another kind", "too large", "no object", "no JSON", "too deep"],
)
def test_malformed_requests_end_the_connection(new: Callable[..., NodeServer], message: bytes) -> None:
    node = new("a")
    with connected(node.endpoint) as connection:
        connection.sendall(node.endpoint.token.encode() + message)
        assert is_ended(connection)


def test_another_release_is_refused_by_name(new: Callable[..., NodeServer]) -> None:
    old = replace(new("a").endpoint, release="0.0.1")
    with pytest.raises(EngineError, match=r"The node a has release 0\.0\.1 of agent-tools.*install the same one"):
        NodesEngine(FixedNodes(old)).start(SPEC)


def test_a_node_of_another_release_is_passed_over(new: Callable[..., NodeServer]) -> None:
    old, node = replace(new("a").endpoint, release="0.0.1"), new("b")
    engine = NodesEngine(FixedNodes(old, node.endpoint))
    found = [engine.start(SPEC) for _ in range(4)]
    assert {each.id.split("/")[0] for each in found} == {"b"}
    for each in found:
        end(engine, each)


# -- where a sandbox goes ---------------------------------------------------------------------------------------------


def test_sandboxes_are_spread_and_full_nodes_say_so(new: Callable[..., NodeServer]) -> None:
    engine = engine_over(new("a", 2), new("b", 2))
    found = [engine.start(SPEC) for _ in range(4)]
    assert sorted(each.id.split("/")[0] for each in found) == ["a", "a", "b", "b"]
    with pytest.raises(HostFull, match=r"All 2 slots are taken.*Close sandboxes, or add nodes"):
        engine.start(SPEC)
    end(engine, found[0])
    found.append(NodesEngine(engine._nodes, timeout=30.0).start(SPEC))  # waits until the node has removed it
    for each in found[1:]:
        end(engine, each)


def test_a_node_that_does_not_answer_is_passed_over_and_doubted(new: Callable[..., NodeServer]) -> None:
    with socket.create_server((LOCAL, 0)) as closed:
        gone = replace(new("a").endpoint, name="gone", port=closed.getsockname()[1])
    nodes = FixedNodes(gone, new("b").endpoint)
    engine = NodesEngine(nodes)
    for _ in range(4):
        container = engine.start(SPEC)
        assert container.id.startswith("b/")
        end(engine, container)
    assert len(nodes.doubted) <= 1
    with pytest.raises(EngineUnavailable, match="The node gone does not answer"):
        NodesEngine(FixedNodes(gone)).start(SPEC)
    with pytest.raises(EngineUnavailable, match="ray start"):
        NodesEngine(FixedNodes()).start(SPEC)


def test_a_node_whose_process_is_another_one_by_now_is_found_anew(new: Callable[..., NodeServer]) -> None:
    node = new("a")

    class Renewed(FixedNodes):
        def doubt(self, endpoint: NodeEndpoint) -> None:
            self.known = [node.endpoint]

    old = new("a")
    old.close()
    engine = NodesEngine(Renewed(old.endpoint))
    end(engine, engine.start(SPEC))


def test_a_node_whose_engine_does_not_answer_is_passed_over(new: Callable[..., NodeServer]) -> None:
    engine = engine_over(new("a", 64, CountingEngine(EngineUnavailable("no engine"))), new("b"))
    for _ in range(3):
        container = engine.start(SPEC)
        assert container.id.startswith("b/")
        end(engine, container)


# -- what crosses -----------------------------------------------------------------------------------------------------


def test_a_specification_crosses_with_its_limits_and_not_with_its_secrets() -> None:
    policy = NetworkPolicy.read({"allow": ["pypi", "example.com"], "headers": {"example.com": {"x-key": "secret"}}})
    isolation = Isolation(network=policy, memory=512 * MIB, cpus=0.5, runtime="runsc", gpus=1, env={"A": "b"})
    spec = replace(SPEC, isolation=isolation, work_dir_bytes=5, skills=(Path("/one"), Path("/two")), is_ahead=True)
    text = json.dumps(write_spec(spec, Recipe(("polars",), ("jq",), "full")))
    assert "secret" not in text
    guest = Guest((1, 2), (3, 4))
    found, recipe = read_spec(json.loads(text), guest, {"l": "m"})
    assert recipe == Recipe(("polars",), ("jq",), "full")
    assert (found.guest, found.labels, found.work_dir_bytes, len(found.skills)) == (guest, {"l": "m"}, 5, 2)
    assert found.isolation.policy == NetworkPolicy(())
    assert environment(found.isolation) == environment(isolation)
    assert replace(found.isolation, network="none", env={}) == replace(isolation, network="none", env={})


@pytest.mark.parametrize(
    "change",
    [
        {"image": 5},
        {"skills": -1},
        {"isolation": {"memory": 1}},
        {"env": {"a b": "c"}},
        {"network": "host"},
        {"recipe": [1]},
    ],
)
def test_malformed_specifications_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidParams):
        read_spec({**write_spec(SPEC, None), **change}, SPEC.guest, {})


@pytest.mark.parametrize(
    "failure", [HostFull("f"), SandboxStartError("s", "log"), ImageBuildError("i", "log"), InvalidParams("p")]
)
def test_failures_of_a_node_are_raised_as_they_are(failure: Exception) -> None:
    with pytest.raises(type(failure), match=rf"{failure} \(node a\)") as raised:
        raise_error(write_error(failure), "a")
    assert getattr(raised.value, "log", "") == getattr(failure, "log", "")


def test_failures_are_escaped_and_unknown_kinds_are_the_engines() -> None:
    with pytest.raises(EngineError, match=r"^red \(node a\)$"):
        raise_error({"error": "SystemExit", "message": "\x1b[31mred"}, "a")


@pytest.mark.parametrize(
    "answer",
    [b"\0\0\0\2{}", b'\0\0\0\x0c{"id": "../"}', b"\0\0\0\x0a" + b'{"id": 55}', b"\0\x02\0\0", b"\0\0\0\2[]", b"\0"],
    ids=["no id", "bad id", "a number", "too large", "no object", "cut"],
)
def test_unusable_answers_of_a_node_are_no_answers(answer: bytes) -> None:
    context, certificate = node_keys.serving_tls()
    with socket.create_server((LOCAL, 0)) as listener:
        endpoint = NodeEndpoint("a", LOCAL, listener.getsockname()[1], node_keys.new_token(), certificate, 4)

        def serve() -> None:
            connection, _ = listener.accept()
            listener.close()  # the node is asked once more
            with context.wrap_socket(connection, server_side=True) as caller:
                greeting.read_exactly(caller, node_keys.TOKEN_BYTES, time.monotonic() + 10)
                greeting.read_message(caller, MIB, time.monotonic() + 10)
                caller.sendall(answer)

        served = threading.Thread(target=serve)
        served.start()
        with pytest.raises(EngineUnavailable, match=r"The node a (does not answer|gave an unusable answer)"):
            NodesEngine(FixedNodes(endpoint)).start(SPEC)
        served.join()


# -- what ends a sandbox ----------------------------------------------------------------------------------------------


def test_a_node_that_ends_in_a_run_is_the_reason_of_its_end(new: Callable[..., NodeServer], work_dir: Path) -> None:
    node, other = new("a"), new("b")
    nodes = FixedNodes(node.endpoint)
    with closing(session_on(NodesEngine(nodes), work_dir)) as session:
        outputs = session.stream("import time\nprint('on', flush=True)\ntime.sleep(100)", 60)
        next(outputs)
        node.close()
        assert [each.reason for each in outputs if isinstance(each, Died)] == ["the connection to the node a was lost"]
        nodes.known = [other.endpoint]
        outputs = session.run("print('x' in globals())", 30).outputs
        assert isinstance(outputs[0], Restarted)
    assert until(lambda: node.taken == 0)


def test_a_sandbox_that_ends_says_goodbye(new: Callable[..., NodeServer], work_dir: Path) -> None:
    processes = ProcessEngine(shares_files=False)
    with closing(session_on(engine_over(new("a", 4, processes)), work_dir)) as session:
        outputs = session.stream("import time\nprint('on', flush=True)\ntime.sleep(100)", 60)
        next(outputs)
        for id_ in list(processes.processes):
            processes.remove(EngineContainer(id_))
        assert [each.reason for each in outputs if isinstance(each, Died)] == ["the sandbox ended"]


def test_a_caller_that_hangs_up_has_no_sandbox_and_no_slot(new: Callable[..., NodeServer]) -> None:
    processes = ProcessEngine(shares_files=False)
    node = new("a", 4, processes)
    container = engine_over(node).start(SPEC)
    assert container.stdio
    assert (node.taken, len(processes.processes)) == (1, 1)
    container.stdio.close()
    until(lambda: (node.taken, len(processes.processes)) == (0, 0))


def test_a_caller_that_hangs_up_during_a_start_has_no_sandbox(new: Callable[..., NodeServer]) -> None:
    processes = CountingEngine()
    processes.may_start.clear()
    node = new("a", 4, processes)
    with connected(node.endpoint) as connection:
        connection.sendall(node.endpoint.token.encode())
        greeting.send_message(connection, {"op": "start", "spec": write_spec(SPEC, None)})
        until(lambda: len(processes.specs) == 1)
    processes.may_start.set()
    until(lambda: (node.taken, len(processes.processes)) == (0, 0))


def test_a_failed_start_gives_back_its_slot_and_its_log(new: Callable[..., NodeServer]) -> None:
    node = new("a", 1, CountingEngine(SandboxStartError("no such runtime", "the log")))
    for _ in range(2):
        with pytest.raises(SandboxStartError, match="no such runtime") as raised:
            engine_over(node).start(SPEC)
        assert raised.value.log == "the log"
    assert node.taken == 0


def test_a_node_labels_its_containers_as_its_own(new: Callable[..., NodeServer]) -> None:
    processes = CountingEngine()
    engine = engine_over(new("a", 4, processes))
    end(engine, engine.start(replace(SPEC, labels={"agent_tools.owner": "1-1"}, image="theirs")))
    (spec,) = processes.specs
    assert spec.labels["agent_tools.owner"] != "1-1"
    assert spec.guest == processes.guest()


def test_last_words_of_a_sandbox_come_from_its_node(new: Callable[..., NodeServer]) -> None:
    processes = ProcessEngine(shares_files=False)
    engine = engine_over(new("a", 4, processes))
    container = engine.start(SPEC)
    assert engine.last_words(container, SPEC) is None
    processes.remove(EngineContainer(container.id.partition("/")[2]))
    assert isinstance(container.stdio, link.LinkStdio)
    until(lambda: container.stdio.receive() == b"")
    assert engine.last_words(container, SPEC) == "it ended"
    end(engine, container)
