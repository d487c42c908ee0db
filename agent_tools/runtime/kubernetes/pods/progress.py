"""A pod's way to its start, read off its status: it runs, it is under way, or it will not run, and why. Pure.

The status: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_tools.runtime.kubernetes.cluster.api import told

UNDER_WAY = ("ContainerCreating", "PodInitializing")
MOST_CONDITIONS = 50  # of one pod that are looked at
HINTS = {
    "seccomp": "The profile must be on every node: deploy/kubernetes has a DaemonSet that puts it there.",
    "image": "Nodes must be able to pull it: `agent-tools image push` brings it to a registry.",
    "Unschedulable": "No node has room for it, or is meant for it.",
    "user namespace": "Leave AGENT_TOOLS_KUBERNETES_USER_NAMESPACES unset on nodes that have none.",
}


@dataclass(frozen=True)
class Progress:
    """The state of a start: how far it is.

    Attributes:
        failure: why it will not run; '' if it may.
        waits_for: what it waits for, for whoever gives up.
        pod: the name of its pod, where that is another one than the object's.
    """

    is_running: bool = False
    has_ended: bool = False
    failure: str = ""
    waits_for: str = ""
    pod: str = ""


def progress_of(pod: dict[str, Any]) -> Progress:
    """Read a pod; one whose status is no status is under way."""
    status = table(pod.get("status"))
    phase = status.get("phase")
    if table(pod.get("metadata")).get("deletionTimestamp"):
        return Progress(has_ended=True, failure="it is being deleted by somebody else")
    if phase in ("Succeeded", "Failed"):
        return Progress(has_ended=True, failure=_with_hint(" ".join(_endings(status)) or f"it has ended ({phase})"))
    waiting = [_words(each) for each in _states(status, "waiting") if each.get("reason") not in UNDER_WAY]
    if waiting:
        return Progress(failure=_with_hint("; ".join(waiting)))
    if phase == "Running" and _states(status, "running"):
        return Progress(is_running=True)
    return Progress(waits_for=_with_hint("; ".join(_unmet(status)) or "its node"))


def _endings(status: dict[str, Any]) -> Iterator[str]:
    if status.get("reason") or status.get("message"):
        yield _words(status)
    for each in _states(status, "terminated"):
        yield f"{_words(each)} (exit code {told(each.get('exitCode'))})"


def _unmet(status: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons of conditions that do not hold: why no node takes it."""
    for each in tables(status.get("conditions"))[:MOST_CONDITIONS]:
        if each.get("status") == "False" and each.get("type") == "PodScheduled":
            yield _words(each)


def _states(status: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the containers' states of this name."""
    found = [table(each.get("state")).get(name) for each in tables(status.get("containerStatuses"))]
    return [each for each in found if isinstance(each, dict)]


def _words(said: dict[str, Any]) -> str:
    parts = [said.get("reason"), said.get("message")]
    return ": ".join(told(part) for part in parts if isinstance(part, str) and part)


def _with_hint(words: str) -> str:
    hint = next((hint for name, hint in HINTS.items() if name.lower() in words.lower()), "")
    return f"{words}. {hint}" if hint else words


def table(value: object) -> dict[str, Any]:
    """Return an object of JSON; an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list of JSON."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
