"""The pods that somebody waits for, by one watch of the API server for all of them.

Theory of operation
    Whoever waits first reads the watch, for everybody: it notes what comes about any object, and wakes those who
    wait. When its own is there it goes, and one of the others reads on. So there is one watch, no thread of ours, and
    nothing is left when nobody waits. A watch begins with what is there, so nothing that happened before it is
    missed; one that ends, as servers end them now and then, or that a busy one does not open, is begun anew. What is
    about to be made is expected before it is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from agent_tools.engines.kubernetes.api import Api, Lines, told

# A pod's way to its start, read off its status: it runs, it is under way, or it will not run, and why. Pure.
#
# The status: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus


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


LOOK_SECONDS = 5.0  # without an event, after which whoever reads looks at its deadline
PAUSE = 0.5  # seconds before a watch that ended without a word is begun anew
GONE = Progress(has_ended=True, failure="it was deleted by somebody else")


class Watch:
    """Waits for objects of one list, chosen by a label; `judge` tells how far one is. Thread-safe."""

    def __init__(self, api: Api, path: str, selector: str, judge: Callable[[dict[str, Any]], Progress]) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._judge = judge
        self._changed = threading.Condition()
        self._known: dict[str, Progress] = {}  # of those that are expected
        self._is_read = False

    @contextmanager
    def expect(self, name: str) -> Iterator[None]:
        """Note what comes about an object of this name, for the time of the block."""
        with self._changed:
            self._known[name] = Progress(waits_for="its node")
        try:
            yield
        finally:
            with self._changed:
                self._known.pop(name, None)

    def wait(self, name: str, deadline: float) -> Progress:
        """Wait until an expected object runs or will not; at the deadline, a monotonic time, return how far it is.

        Raises:
            EngineError: the API server does not answer.
        """
        while not _is_decided(self._progress(name)) and time.monotonic() < deadline:
            if self._is_read_by_another(deadline):
                continue
            try:
                self._read(name, deadline)
            finally:
                with self._changed:
                    self._is_read = False
                    self._changed.notify_all()
        return self._progress(name)

    def _is_read_by_another(self, deadline: float) -> bool:
        """Wait for the next event that another reads; False where there is none who does, and it is our turn."""
        with self._changed:
            if not self._is_read:
                self._is_read = True
                return False
            self._changed.wait(max(0.0, min(LOOK_SECONDS, deadline - time.monotonic())))
            return True

    def _progress(self, name: str) -> Progress:
        with self._changed:
            return self._known[name]

    def _read(self, name: str, deadline: float) -> None:
        """Read until this pod is decided, the watch ends, or the deadline comes."""
        started = time.monotonic()
        opening = max(LOOK_SECONDS, deadline - started)
        with ExitStack() as opened:
            lines: Lines = opened.enter_context(
                self._api.watch(self._path, opening, LOOK_SECONDS, {"labelSelector": self._selector})
            )
            while not _is_decided(self._progress(name)) and time.monotonic() < deadline:
                event = lines.next()
                if event is None:
                    break
                self._note(event)
        if time.monotonic() - started < PAUSE and not _is_decided(self._progress(name)):
            time.sleep(PAUSE)

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("object")
        metadata = found.get("metadata") if isinstance(found, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        with self._changed:
            if isinstance(found, dict) and isinstance(name, str) and name in self._known:
                self._known[name] = GONE if event.get("type") == "DELETED" else self._judge(found)
                self._changed.notify_all()


def _is_decided(progress: Progress) -> bool:
    return progress.is_running or progress.has_ended or bool(progress.failure)
