"""The hosts of a Ray cluster: an actor on each node that has the resource `sandbox`, found or made when needed.

The amount of that resource is the number of slots: a node needs only
`ray start --resources='{"sandbox": 200}'`. Ray's exceptions are translated only here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    PendingCallsLimitExceeded,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_tools.errors import AgentToolsError, EngineError, EngineUnavailable, HostFull, InvalidParams
from agent_tools.fleet.fleet import Fleet
from agent_tools.fleet.protocol import (
    CONTROL,
    CONTROL_AT_ONCE,
    END_SECONDS,
    IDLE_END_SECONDS,
    LEASE_SECONDS,
    MAX_HOSTS_PER_NODE,
    MAX_PENDING_CALLS,
    RUNS,
    RUNS_AT_ONCE,
    SILENCE_SECONDS,
    WAIT_SECONDS,
    WORK,
    WORK_AT_ONCE,
    HostLink,
    HostUnreachable,
    Outbox,
)
from agent_tools.fleet.sandbox_host import SandboxHost
from agent_tools.machine.rounds import begun
from agent_tools.runtime.runtime import docker_runtime

# A host as an actor, one or a few on each node that has sandboxes.
#
# It is detached: callers share its slots, and keep their sessions by leases. An unused host ends after a while; a
# caller that needs one makes it again. Ray starts it anew when its process ends, and then it knows no
# session.
#
# Expected exceptions are sent as values (`Raised`), since Ray would wrap them in its own.

THREADS = {"control": CONTROL_AT_ONCE, "work": WORK_AT_ONCE, "runs": RUNS_AT_ONCE}
"""Calls of a host that are served at once, by kind."""
GROUP_OF = {
    **dict.fromkeys(CONTROL, "control"),
    **dict.fromkeys(WORK, "work"),
    **dict.fromkeys(RUNS, "runs"),
}


@dataclass(frozen=True)
class HostSettings:
    """The settings of a new host. `idle_end` is in seconds; with 0 it runs until `agent-tools fleet down`."""

    slots: int
    lease: float
    idle_end: float = IDLE_END_SECONDS


@dataclass(frozen=True)
class Raised:
    """An expected exception, as a value."""

    exception: Exception


class HostActor:
    """Serves the methods of a `SandboxHost` in three groups of threads, so that none waits for one of another kind."""

    def __init__(self, settings: HostSettings) -> None:
        runtime = docker_runtime()
        self._settings = settings
        self._host = SandboxHost(runtime, settings.slots, settings.lease)
        threading.Thread(target=runtime.sweep, name="agent-tools-sweep", daemon=True).start()
        if settings.idle_end:
            threading.Thread(target=self._end_when_idle, name="agent-tools-idle", daemon=True).start()

    @ray.method(concurrency_group="control")
    def control(self, method: str, *arguments: Any) -> Any:
        """Call a method that answers at once."""
        return self._call("control", method, arguments)

    @ray.method(concurrency_group="work")
    def work(self, method: str, *arguments: Any) -> Any:
        """Call a method that takes a while."""
        return self._call("work", method, arguments)

    @ray.method(concurrency_group="runs")
    def runs(self, method: str, *arguments: Any) -> Any:
        """Call a method that waits as long as the code does."""
        return self._call("runs", method, arguments)

    @ray.method(concurrency_group="control")
    def end(self) -> None:
        """Close everything, before the actor is ended."""
        self._host.close_all()

    def _call(self, group: str, method: str, arguments: tuple[Any, ...]) -> Any:
        if GROUP_OF.get(method) != group:
            return Raised(InvalidParams(f"{method!r:.40} is no method of a host."))
        try:
            return getattr(self._host, method)(*arguments)
        except (AgentToolsError, OSError) as exc:
            return Raised(exc)

    def _end_when_idle(self) -> None:
        while time.monotonic() - self._host.used_at < self._settings.idle_end or self._host.load().taken:
            time.sleep(min(5.0, self._settings.idle_end / 4))
        try:
            self._host.close_all()
        finally:
            ray.kill(ray.get_runtime_context().current_actor)


RESOURCE = "sandbox"
NAMESPACE = "agent-tools"
PREFIX = "host-"
"""Begins the name of a host's actor."""
LOOK_SECONDS = 2.0
"""Seconds for which the list of nodes is taken to be true."""


class RayLink:
    """The connection to one host actor. Thread-safe."""

    def __init__(self, name: str, actor: Any) -> None:
        self.actor = actor
        self.is_dead = False
        self._name = name
        self._outbox = Outbox(self._sent)

    @property
    def name(self) -> str:
        """The host's name: that of its actor."""
        return self._name

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of the host, once.

        Raises:
            HostUnreachable: it does not answer; it may have carried out the call nevertheless.
            HostFull: too many calls of this process wait there.
            EngineError: it failed in another way.
        """
        try:
            value = self._answer(self._begin(method, arguments), seconds)
        except (RayError, ConnectionError, OSError) as exc:
            raise self._told(exc) from exc
        if isinstance(value, Raised):
            raise value.exception
        return value

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting; if too many calls are pending, it is called later."""
        self._outbox.tell(method, *arguments)

    def _sent(self, method: str, *arguments: Any) -> bool:
        try:
            self._begin(method, arguments)
        except PendingCallsLimitExceeded:
            return False
        except (RayError, ConnectionError, OSError):
            return True
        return True

    def _begin(self, method: str, arguments: Sequence[Any]) -> Any:
        return getattr(self.actor, GROUP_OF[method]).remote(method, *arguments)

    def _answer(self, answer: Any, seconds: float | None) -> Any:
        """Wait for an answer; without a limit, as long as the host answers other calls.

        Ray reports a process that has ended, but not one that hangs.
        """
        while True:
            try:
                return ray.get(answer, timeout=SILENCE_SECONDS if seconds is None else seconds)
            except GetTimeoutError:
                if seconds is not None:
                    raise
            with contextlib.suppress(PendingCallsLimitExceeded):
                ray.get(self._begin("load", ()), timeout=SILENCE_SECONDS)

    def _told(self, exc: Exception) -> Exception:
        """Translate an exception of Ray."""
        if isinstance(exc, PendingCallsLimitExceeded):
            return HostFull(f"{MAX_PENDING_CALLS:,} calls of this process wait at the host {self._name} already.")
        if isinstance(exc, GetTimeoutError):
            return HostUnreachable(f"the host {self._name} did not answer in time")
        if isinstance(exc, RayTaskError):
            return EngineError(f"The host {self._name} failed: {exc.cause!r:.500}")
        self.is_dead = self.is_dead or isinstance(exc, ActorDiedError)  # it never comes back under this handle
        is_known = isinstance(exc, (RayActorError, ConnectionError))
        how = "has ended" if self.is_dead else "does not answer" if is_known else f"failed: {exc!r:.200}"
        return HostUnreachable(f"the host {self._name} {how}", is_final=self.is_dead)


class RayHosts:
    """The hosts of this process's cluster, which `close` does not leave. Thread-safe."""

    def __init__(
        self,
        *,
        hosts_per_node: int = 1,
        lease: float = LEASE_SECONDS,
        idle_end: float = IDLE_END_SECONDS,
    ) -> None:
        self._per_node, self._lease, self._idle_end = hosts_per_node, lease, idle_end
        self._links: dict[str, RayLink] = {}
        self._looked_at = -float("inf")
        self._looking = threading.Lock()

    def links(self) -> Sequence[HostLink]:
        """Return the hosts.

        The list of nodes is renewed in the background, except at first and after a node has died.
        """
        links = [link for link in self._links.values() if not link.is_dead]
        if not links or len(links) < len(self._links):
            self._look(is_patient=True)
            links = [link for link in self._links.values() if not link.is_dead]
        elif time.monotonic() - self._looked_at > LOOK_SECONDS and not self._looking.locked():
            begun(self._look, "agent-tools-nodes")
        return links

    def close(self) -> None:
        """Release the hosts, which continue for other callers."""
        self._links = {}

    def _look(self, *, is_patient: bool = False) -> None:
        """Update the list of nodes: make hosts on new nodes, and drop hosts of missing nodes.

        Raises:
            EngineUnavailable: the cluster does not answer.
        """
        if not self._looking.acquire(blocking=is_patient):
            return
        try:
            slots = nodes()
            wanted = {f"{node}-{number}": node for node in slots for number in range(self._per_node)}
            kept = {name: link for name, link in self._links.items() if name in wanted and not link.is_dead}
            for name in wanted.keys() - kept.keys():
                kept[name] = RayLink(name, self._actor(name, wanted[name], slots[wanted[name]]))
            self._links, self._looked_at = kept, time.monotonic()
        except (RayError, ConnectionError, OSError, ValueError) as exc:
            if is_patient:
                raise EngineUnavailable(f"The Ray cluster does not list its nodes: {exc!r:.300}") from exc
        finally:
            self._looking.release()

    def _actor(self, name: str, node: str, slots: int) -> Any:
        share = max(1, slots // self._per_node)
        made = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups=THREADS)(HostActor)
        return made.options(
            name=f"{PREFIX}{name}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_pending_calls=MAX_PENDING_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(HostSettings(share, self._lease, self._idle_end))


def running() -> list[RayLink]:
    """Return all running hosts, made by any process."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(each["name"] for each in found if each["namespace"] == NAMESPACE)
    return [RayLink(name.removeprefix(PREFIX), ray.get_actor(name, NAMESPACE)) for name in names if PREFIX in name]


def end(link: RayLink) -> None:
    """End a host with all its sandboxes, even those of other callers."""
    with contextlib.suppress(RayError):
        ray.get(link.actor.end.remote(), timeout=END_SECONDS)
    ray.kill(link.actor)


def nodes() -> dict[str, int]:
    """Return the nodes for sandboxes, by id, with the number of slots of each."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    slots = {node["NodeID"]: int(node["Resources"].get(RESOURCE, 0)) for node in alive}
    return {node: count for node, count in slots.items() if count > 0}


# The engine `ray`: a fleet on this process's Ray cluster, or on the cluster at an address.


def ray_fleet(
    word: str = "ray",
    *,
    hosts_per_node: int = 1,
    lease: float = LEASE_SECONDS,
    patience: float = WAIT_SECONDS,
    copies_files: bool = True,
    idle_end: float = IDLE_END_SECONDS,
) -> Fleet:
    """Return a fleet on a Ray cluster; arguments and errors as for `agent_tools.fleet.connect`.

    `idle_end` is in seconds: a host that this process made ends after as long without use; 0 for never.
    """
    if not 1 <= hosts_per_node <= MAX_HOSTS_PER_NODE:
        raise InvalidParams(f"hosts_per_node={hosts_per_node!r:.40} is not usable: give 1 to {MAX_HOSTS_PER_NODE}.")
    join(word)
    hosts = RayHosts(hosts_per_node=hosts_per_node, lease=lease, idle_end=idle_end)
    return Fleet(hosts, lease=lease, patience=patience, copies_files=copies_files)


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
