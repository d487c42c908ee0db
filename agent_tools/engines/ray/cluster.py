"""The nodes of a Ray cluster: an actor on each one that has the resource `sandbox`, found or made when needed.

The amount of that resource is the number of slots: a node needs only `ray start --resources='{"sandbox": 200}'`. Ray
carries nothing but the endpoint of each node; sandboxes go on while its control store is away. Ray's exceptions are
translated only here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.image import Images
from agent_tools.engines.ray.node import NodeEndpoint, NodeServer
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import AgentToolsError, EngineError, EngineUnavailable
from agent_tools.machine.background import start_thread
from agent_tools.machine.descriptors import raise_limit
from agent_tools.machine.owner import orphans, same_user
from agent_tools.version import __version__

RESOURCE = "sandbox"
NAMESPACE = "agent-tools"
PREFIX = "node-"
"""Begins the name of a node's actor."""
LOOK_SECONDS = 2.0  # for which the list of nodes is taken to be true
ASK_SECONDS = 60.0  # in which a new actor must answer; Ray starts a process for it
FACTS_SECONDS = 5.0
IDLE_END_SECONDS = 600.0  # without a sandbox, after which an actor ends
IMAGE_SECONDS = 3600.0
END_SECONDS = 30.0  # in which an actor may close its sandboxes
_CALLS_AT_ONCE = 8


@dataclass(frozen=True)
class NodeFacts:
    """The process of a node, and how many of its slots are taken."""

    machine: str
    pid: int
    taken: int
    slots: int
    release: str


class NodeActor:
    """A node's process. It is detached: callers share it. Ray restarts it when it dies, and it ends when it is idle."""

    def __init__(self, name: str, slots: int, idle_end: float) -> None:
        raise_limit()
        engine = DockerEngine()
        self._images = Images(engine)
        self._engine = engine
        self._idle_end = idle_end
        self._server = NodeServer(engine, self._images.ensure, name, ray.util.get_node_ip_address(), slots)
        start_thread(self._sweep, "agent-tools-sweep")
        if idle_end:
            start_thread(self._end_when_idle, "agent-tools-idle")

    def endpoint(self) -> NodeEndpoint:
        """Return where callers connect, and with which token and certificate."""
        self._server.used_at = time.monotonic()
        return self._server.endpoint

    def facts(self) -> NodeFacts:
        """Return facts for people."""
        return NodeFacts(platform.node(), os.getpid(), self._server.taken, self._server.endpoint.slots, __version__)

    def ensure_image(self, recipe: Recipe) -> str:
        """Build an image if it is missing; return its tag, or the error as text after 'error: '."""
        try:
            return self._images.ensure(recipe)
        except AgentToolsError as exc:
            return f"error: {exc}"

    def end(self) -> None:
        """End all sandboxes, before the actor is killed."""
        self._server.close()
        until = time.monotonic() + END_SECONDS / 2
        while self._server.taken and time.monotonic() < until:
            time.sleep(0.05)

    def _sweep(self) -> None:
        with contextlib.suppress(AgentToolsError, OSError):
            for container in orphans(self._engine.strays(same_user())):
                self._engine.remove(container)

    def _end_when_idle(self) -> None:
        while not self._server.retire(self._idle_end):
            time.sleep(min(5.0, self._idle_end / 4))
        ray.kill(ray.get_runtime_context().current_actor)


class RayNodes:
    """The nodes of this process's cluster. Thread-safe.

    The list is renewed in the background, since the control store may be away; a caller waits only if it is empty.
    """

    def __init__(self, idle_end: float = IDLE_END_SECONDS) -> None:
        self._idle_end = idle_end
        self._looking = threading.Lock()
        self._lock = threading.Lock()
        self._known: dict[str, NodeEndpoint] = {}  # by id of the node
        self._looked_at = -float("inf")

    def endpoints(self) -> Sequence[NodeEndpoint]:
        """Return the endpoints of all nodes that answer.

        Raises:
            EngineUnavailable: the cluster does not list its nodes, and none is known.
        """
        if not self._known:
            with self._looking:
                if not self._known:
                    self._look()
        elif time.monotonic() - self._looked_at > LOOK_SECONDS and self._looking.acquire(blocking=False):
            is_begun = start_thread(self._look_behind, "agent-tools-nodes")
            if not is_begun:
                self._looking.release()
        with self._lock:
            return list(self._known.values())

    def doubt(self, endpoint: NodeEndpoint) -> None:
        """Ask the actor of a node anew, soon: its process may be another one."""
        with self._lock:
            self._known = {node: each for node, each in self._known.items() if each != endpoint}
            self._looked_at = -float("inf")

    def _look_behind(self) -> None:
        try:
            with contextlib.suppress(EngineUnavailable):  # those known are still there
                self._look()
        finally:
            self._looked_at = time.monotonic()
            self._looking.release()

    def _look(self) -> None:
        slots = slots_of_nodes()
        missing = slots.keys() - self._known.keys()
        with translated("The nodes of the Ray cluster do not answer"):
            asked = {actor_of(node, slots[node], self._idle_end).endpoint.remote(): node for node in missing}
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_SECONDS) if asked else ([], [])
        found = {}
        for answer in ready:
            with contextlib.suppress(RayError):  # this node's alone
                found[asked[answer]] = ray.get(answer)
        with self._lock:
            kept = {node: each for node, each in self._known.items() if node in slots}
            self._known = {**kept, **{node: each for node, each in found.items() if isinstance(each, NodeEndpoint)}}
            self._looked_at = time.monotonic()


def actor_of(node: str, slots: int, idle_end: float) -> Any:
    """Return the handle of a node's actor, which is started if there is none."""
    made = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=_CALLS_AT_ONCE)(NodeActor)
    return made.options(
        name=f"{PREFIX}{node}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(node[:12], slots, idle_end)


def running() -> Mapping[str, Any]:
    """Return the handles of all running actors, made by any process, by the id of their node."""
    with translated("The Ray cluster does not list its actors"):
        listed = ray.util.list_named_actors(all_namespaces=True)
        found = [each["name"] for each in listed if each["namespace"] == NAMESPACE]
        return {name.removeprefix(PREFIX): ray.get_actor(name, NAMESPACE) for name in found if name.startswith(PREFIX)}


def facts_of(actor: Any) -> NodeFacts:
    """Return the facts of a node. Raises EngineUnavailable: it does not answer."""
    with translated("The node does not answer"):
        facts: NodeFacts = ray.get(actor.facts.remote(), timeout=FACTS_SECONDS)
        return facts


def ensure_image(actor: Any, recipe: Recipe) -> str:
    """Build an image on a node; return its tag. Raises EngineError."""
    with translated("The node does not answer"):
        said = str(ray.get(actor.ensure_image.remote(recipe), timeout=IMAGE_SECONDS))
    if said.startswith("error: "):
        raise EngineError(said.removeprefix("error: "))
    return said


def end(actor: Any) -> None:
    """End a node's actor with all its sandboxes, even those of other callers."""
    with contextlib.suppress(RayError):
        ray.get(actor.end.remote(), timeout=END_SECONDS)
    ray.kill(actor)


def slots_of_nodes() -> dict[str, int]:
    """Return the nodes for sandboxes, by id, with the number of slots of each. Raises EngineUnavailable."""
    with translated("The Ray cluster does not list its nodes"):
        alive = [node for node in ray.nodes() if node["Alive"]]
        slots = {node["NodeID"]: int(node["Resources"].get(RESOURCE, 0)) for node in alive}
    return {node: count for node, count in slots.items() if count > 0}


def join(word: str) -> None:
    """Join the cluster that the engine's name gives, if this process is in none.

    Raises:
        EngineUnavailable: it does not answer.
    """
    if ray.is_initialized():
        return
    address = word if "://" in word else "auto"
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ImportError, OSError, RuntimeError, ValueError) as exc:
        raise EngineUnavailable(
            f"There is no Ray cluster at {address!r} ({exc!r:.200}). Start one (`ray start --head "
            """--resources='{"sandbox": 20}'`), set RAY_ADDRESS, or name it: engine='ray://HOST:10001'."""
        ) from exc


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise failures of Ray as EngineUnavailable."""
    try:
        yield
    except (RayError, ConnectionError, OSError, ValueError) as exc:
        raise EngineUnavailable(f"{what}: {exc!r:.300}") from exc
