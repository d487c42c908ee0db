"""An engine that runs each sandbox as a pod, connected by the streams of one executed program.

It shares no folder and no socket with this machine. The program is executed once, before any user code, and nothing is
executed after it. The end of its stream ends the sandbox, as does the end of this process; the pod then remains as an
object of the cluster until the next sweep by any host removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.kubernetes import warm_pods
from agent_tools.engines.kubernetes.answers import table
from agent_tools.engines.kubernetes.api import CONFLICT, FORBIDDEN, NOT_FOUND, Api, ApiRefused, Json, quoted
from agent_tools.engines.kubernetes.pod import (
    CONTAINER,
    HAND_OVER,
    HOST_LABEL,
    LABELS_ANNOTATION,
    MANAGED_BY,
    USER,
    PodMaker,
    digest,
)
from agent_tools.engines.kubernetes.progress import Progress, progress_of
from agent_tools.engines.kubernetes.stdio import ExecStdio
from agent_tools.engines.kubernetes.watch import await_start
from agent_tools.errors import AgentToolsError, EngineError, SandboxStartError
from agent_tools.limits import KIB

CLAIMED = "claim/"  # prefix of the ids of sandboxes from a pool
LOG_TAIL = 2 * KIB  # bytes of a failed sandbox's log that are shown
EXEC_TRIES = 5  # a pod may run before its kubelet knows
EXEC_PAUSE = 0.5  # seconds between two
ENDED_SECONDS = 120.0  # seconds after its end before a pod of another process is removed


class KubernetesEngine:
    """Runs sandboxes as pods of one namespace."""

    def __init__(self, api: Api, maker: PodMaker) -> None:
        self.api = api
        self.maker = maker
        namespace = quoted(maker.options.namespace)
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self._extensions = f"/apis/{warm_pods.API_VERSION}/namespaces/{namespace}"
        self._sandboxes = f"/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes"
        self._ours = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())

    # -- the Engine protocol ------------------------------------------------------------------------------------------

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return one user for all sandboxes: pods share nothing with this machine, and files are copied.

        Raises:
            EngineUnavailable: without a work_dir, the API server is checked, and does not answer.
        """
        if work_dir is None:
            with contextlib.suppress(ApiRefused):  # it answers
                self.api.ask("GET", "/version")
        me = (os.getuid(), os.getgid())
        return Guest(container_ids=(USER, USER), host_ids=me, shares_sockets=False, shares_files=False)

    def start(self, spec: SandboxSpec) -> EngineContainer:
        """Create a pod, or claim one from a pool, and connect to it.

        Raises:
            SandboxStartError: it does not start, or a pod cannot have what the spec asks for; the message says why.
        """
        deadline = time.monotonic() + self.maker.options.start_timeout
        name = f"sandbox-{secrets.token_hex(8)}"
        is_warm = self.maker.options.warm_pool and self._has_warm(spec)
        container = EngineContainer(f"{CLAIMED}{name}" if is_warm else name)
        with contextlib.ExitStack() as undo:
            undo.callback(self._try_to_remove, container)
            pod = self._claimed(spec, name, deadline) if is_warm else self._created(spec, name, deadline)
            stdio = self._executed(pod, deadline)
            undo.pop_all()
        return replace(container, stdio=stdio)

    def remove(self, sandbox: EngineContainer) -> None:
        """Delete the pod, or the claim that holds it, without grace."""
        with _already_gone():
            if sandbox.id.startswith(CLAIMED):
                name = sandbox.id.removeprefix(CLAIMED)
                self.api.ask("DELETE", f"{self._extensions}/{warm_pods.CLAIMS}/{quoted(name)}")
            else:
                self.api.ask("DELETE", f"{self.pods}/{quoted(sandbox.id)}", query={"gracePeriodSeconds": "0"})

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        """Return the last output, the pod's status and its log; None while the stream is open."""
        stdio = sandbox.stdio
        if sandbox.id.startswith(CLAIMED):
            if not isinstance(stdio, ExecStdio):
                return None
            return stdio.last_words or ("it has ended" if stdio.has_ended else None)
        progress = self._progress(sandbox.id)
        if progress.is_running:
            return None
        said = stdio.last_words if isinstance(stdio, ExecStdio) else ""
        parts = (progress.failure or "it is gone", said, self._log(sandbox.id))
        return "\n".join(part for part in parts if part)

    def strays(self, host: Mapping[str, str]) -> list[tuple[EngineContainer, Mapping[str, str]]]:
        """Return the sandboxes with labels that contain `host`. Pods of any host that ended long ago are removed."""
        selector = self._ours
        if "agent_tools.host" in host:
            selector += f",{HOST_LABEL}={digest(host['agent_tools.host'])}"
        found = []
        for pod in self.api.items(self.pods, {"labelSelector": selector}):
            labels = _labels(pod)
            if host.items() <= labels.items():
                found.append((_container(pod), labels))
        self._remove_ended()
        return found

    # -- the start ----------------------------------------------------------------------------------------------------

    def _created(self, spec: SandboxSpec, name: str, deadline: float) -> str:
        self._make(self.pods, self.maker.pod(spec, name))
        _check(await_start(self.api, self.pods, name, progress_of, deadline), self.maker.options.start_timeout)
        return name

    def _claimed(self, spec: SandboxSpec, name: str, deadline: float) -> str:
        path = f"{self._extensions}/{warm_pods.CLAIMS}"
        self._make(path, warm_pods.claim(self.maker, spec, name))
        progress = await_start(self.api, path, name, warm_pods.progress_of_claim, deadline)
        _check(progress, self.maker.options.start_timeout)
        sandbox = self.api.ask("GET", f"{self._sandboxes}/{quoted(progress.pod)}")
        return warm_pods.pod_name_of(sandbox, progress.pod)

    def _has_warm(self, spec: SandboxSpec) -> bool:
        """Return whether a pool has a ready sandbox of this kind: a new pod is faster than an empty pool."""
        name = warm_pods.pool_name(self.maker, spec)
        try:
            return warm_pods.has_ready(self.api.ask("GET", f"{self._extensions}/{warm_pods.POOLS}/{quoted(name)}"))
        except ApiRefused as exc:
            if exc.status == NOT_FOUND:
                return False
            raise

    def _make(self, path: str, body: Json) -> None:
        try:
            self.api.ask("POST", path, body)
        except ApiRefused as exc:
            hint = " The service account needs the rights of deploy/kubernetes." if exc.status == FORBIDDEN else ""
            raise SandboxStartError(f"Kubernetes cannot create a sandbox: {exc}{hint}") from exc

    def _executed(self, pod: str, deadline: float) -> ExecStdio:
        """Execute the program that hands over its streams."""
        query = {"container": CONTAINER, "stdin": "true", "stdout": "true", "stderr": "true", "command": HAND_OVER}
        path = f"{self.pods}/{quoted(pod)}/exec"
        tries = 1
        while True:
            try:
                return ExecStdio(self.api, path, query, min(self.api.timeout, max(1.0, deadline - time.monotonic())))
            except ApiRefused as exc:
                if exc.status == FORBIDDEN or tries == EXEC_TRIES:
                    raise SandboxStartError(f"The sandbox's program cannot be executed in the pod: {exc}") from exc
            tries += 1
            time.sleep(EXEC_PAUSE)

    def _try_to_remove(self, container: EngineContainer) -> None:
        """Remove a pod that may have been created.

        If that fails, a new pod ends by itself after HOLD_SECONDS without a stream. A pod of a pool waits without a
        limit, and the cluster does not show whether it was used: a sweep of this host removes its claim after the end
        of this process, or the claim's `shutdownTime` ends it.
        """
        with contextlib.suppress(AgentToolsError):
            self.remove(container)

    # -- what there is ------------------------------------------------------------------------------------------------

    def _progress(self, pod: str) -> Progress:
        try:
            return progress_of(self.api.ask("GET", f"{self.pods}/{quoted(pod)}"))
        except ApiRefused as exc:
            if exc.status == NOT_FOUND:
                return Progress(has_ended=True, failure="its pod is gone")
            raise

    def _log(self, pod: str) -> str:
        with contextlib.suppress(EngineError):
            query = {"container": CONTAINER, "tailLines": "40", "limitBytes": str(LOG_TAIL)}
            return self.api.text(f"{self.pods}/{quoted(pod)}/log", LOG_TAIL, query)
        return ""

    def _remove_ended(self) -> None:
        """Remove pods of any host that ended a while ago: they hold nothing, and no owner needs them."""
        query = {"labelSelector": self._ours, "fieldSelector": "status.phase!=Running,status.phase!=Pending"}
        for pod in self.api.items(self.pods, query):
            if progress_of(pod).has_ended and _ended_before(pod, ENDED_SECONDS):
                self._try_to_remove(_container(pod))


def _check(progress: Progress, seconds: float) -> None:
    if progress.failure:
        raise SandboxStartError(f"Kubernetes cannot start the sandbox: {progress.failure}", progress.failure)
    if not progress.is_running:
        raise SandboxStartError(
            f"Kubernetes did not start the sandbox within {seconds:g} s (AGENT_TOOLS_KUBERNETES_START_TIMEOUT). "
            f"It waits for {progress.waits_for}"
        )


@contextlib.contextmanager
def _already_gone() -> Iterator[None]:
    """Treat a missing object, or one that is being deleted, as removed."""
    try:
        yield
    except ApiRefused as exc:
        if exc.status not in (NOT_FOUND, CONFLICT):
            raise


def _labels(pod: Json) -> Mapping[str, str]:
    """Return the labels in a pod's annotation, which is untrusted: every writer of the namespace can set it."""
    try:
        found = json.loads(table(table(pod.get("metadata")).get("annotations")).get(LABELS_ANNOTATION, ""))
    except (ValueError, TypeError, RecursionError):
        return {}
    return {key: value for key, value in table(found).items() if isinstance(value, str)}


def _container(pod: Json) -> EngineContainer:
    metadata = table(pod.get("metadata"))
    claimed = table(metadata.get("annotations")).get(warm_pods.CLAIM_ANNOTATION)
    return EngineContainer(f"{CLAIMED}{claimed}" if isinstance(claimed, str) else str(metadata.get("name")))


def _ended_before(pod: Json, seconds: float) -> bool:
    """Return whether a pod ended before a time, by the times of its containers or of its creation."""
    states = table(pod.get("status")).get("containerStatuses")
    first = table(states[0]) if isinstance(states, list) and states else {}
    ended = table(table(first.get("state")).get("terminated")).get("finishedAt")
    said = ended or table(pod.get("metadata")).get("creationTimestamp")
    try:
        at = datetime.strptime(str(said), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return datetime.now(UTC) - at > timedelta(seconds=seconds)
