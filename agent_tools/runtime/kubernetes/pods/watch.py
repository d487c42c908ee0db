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
from typing import Any

from agent_tools.runtime.kubernetes.cluster.api import Api
from agent_tools.runtime.kubernetes.cluster.lines import Lines
from agent_tools.runtime.kubernetes.pods.progress import Progress

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
