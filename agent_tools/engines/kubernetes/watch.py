"""Wait for the start of a pod, or of what makes one, by watches of its list."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent_tools.engines.kubernetes.answers import table
from agent_tools.engines.kubernetes.api import Api, Json
from agent_tools.engines.kubernetes.progress import Progress

SILENCE = 5.0  # seconds without an event, after which a watch is opened again: its connection may be dead
PAUSE = 0.5  # seconds before a watch that ended without an error is opened again
GONE = Progress(has_ended=True, failure="another client deleted it")


def await_start(api: Api, path: str, name: str, judge: Callable[[Json], Progress], deadline: float) -> Progress:
    """Wait until an object of a list runs or will not; at the deadline (monotonic seconds) return its progress.

    `judge` returns the progress of an object. A watch begins with the object as it is, so earlier events are not
    missed; a watch that the server ends or does not open is opened again.

    Raises:
        EngineError: the API server does not answer.
    """
    progress = Progress(waits_for="its node")
    while not _is_decided(progress) and (started := time.monotonic()) < deadline:
        opening = max(SILENCE, deadline - started)
        with api.watch(path, opening, SILENCE, {"fieldSelector": f"metadata.name={name}"}) as lines:
            while not _is_decided(progress) and time.monotonic() < deadline and (event := lines.next()):
                found = table(event.get("object"))
                if table(found.get("metadata")).get("name") == name:
                    progress = GONE if event.get("type") == "DELETED" else judge(found)
        if time.monotonic() - started < PAUSE and not _is_decided(progress):
            time.sleep(PAUSE)
    return progress


def _is_decided(progress: Progress) -> bool:
    return progress.is_running or progress.has_ended or bool(progress.failure)
