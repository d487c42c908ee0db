"""A host as an actor, one or a few on each node that has sandboxes.

It is detached: callers come and go, share its slots, and keep what they have by leases. A host that nobody has used for
a while ends; whoever needs one makes it again. Ray starts it anew when its process ends, and then it knows no session.

What is raised on purpose crosses as a value (`Raised`), since an exception of Ray's would wrap it in a text.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import ray

from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.fleet.limits import CONTROL_AT_ONCE, IDLE_END_SECONDS, RUNS_AT_ONCE, WORK_AT_ONCE
from agent_tools.fleet.protocol import CONTROL, RUNS, WORK
from agent_tools.fleet.sandbox_host import SandboxHost
from agent_tools.runtime.runtime import docker_runtime

THREADS = {"control": CONTROL_AT_ONCE, "work": WORK_AT_ONCE, "runs": RUNS_AT_ONCE}
"""Calls of a host that are served at once, by kind."""
GROUP_OF = {
    **dict.fromkeys(CONTROL, "control"),
    **dict.fromkeys(WORK, "work"),
    **dict.fromkeys(RUNS, "runs"),
}


@dataclass(frozen=True)
class HostSettings:
    """A host to be made. `idle_end` is in seconds; 0: it stays until it is ended (`agent-tools fleet down`)."""

    slots: int
    lease: float
    idle_end: float = IDLE_END_SECONDS


@dataclass(frozen=True)
class Raised:
    """An exception that was raised on purpose."""

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
