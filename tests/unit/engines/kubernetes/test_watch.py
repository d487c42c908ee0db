"""Waits for the start of one object, with a double of the API server's stream."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent_tools.engines.kubernetes.answers import Lines
from agent_tools.engines.kubernetes.progress import Progress, progress_of
from agent_tools.engines.kubernetes.watch import await_start
from agent_tools.errors import EngineUnavailable

RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


class Stream:
    """The part of an Api that a watch asks: begins with what is there, then has what is said."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.there: dict[str, dict[str, Any]] = {}
        self.queues: list[queue.Queue[bytes]] = []
        self.opened = 0

    @contextlib.contextmanager
    def watch(self, path: str, opening: float, seconds: float, query: dict[str, str]) -> Iterator[Lines]:
        own: queue.Queue[bytes] = queue.Queue()
        with self.lock:
            self.opened += 1
            self.queues.append(own)
            for found in self.there.values():
                own.put(event("ADDED", found))
        try:
            yield Lines(iter(lambda: own.get(timeout=20), b""))
        finally:
            with self.lock:
                self.queues.remove(own)

    def say(self, kind: str, name: str, status: dict[str, Any]) -> None:
        found = {"metadata": {"name": name}, "status": status}
        with self.lock:
            self.there[name] = found
            for own in self.queues:
                own.put(event(kind, found))

    def end(self) -> None:
        with self.lock:
            for own in self.queues:
                own.put(b"")


def event(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def waited(stream: Stream, name: str, seconds: float = 20) -> Progress:
    deadline = time.monotonic() + seconds
    return await_start(stream, "/pods", name, progress_of, deadline)  # type: ignore[arg-type]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_events_of_other_objects_decide_nothing(stream: Stream) -> None:
    stream.say("ADDED", "another", RUNNING)
    stream.say("ADDED", "pod", {"phase": "Failed"})
    assert waited(stream, "pod").has_ended


def test_what_was_there_before_is_not_missed(stream: Stream) -> None:
    stream.say("ADDED", "pod", RUNNING)
    assert waited(stream, "pod").is_running


def test_a_watch_that_ends_is_begun_anew(stream: Stream) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waited, stream, "pod")
        while not stream.queues:
            time.sleep(0.01)
        stream.end()
        while stream.opened < 2:
            time.sleep(0.01)
        stream.say("MODIFIED", "pod", RUNNING)
        assert waiting.result(30).is_running


def test_one_that_somebody_deletes_is_told(stream: Stream) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waited, stream, "pod")
        while not stream.queues:
            time.sleep(0.01)
        stream.say("DELETED", "pod", {})
        assert "deleted" in waiting.result(30).failure


def test_at_the_deadline_it_says_how_far_it_is(stream: Stream) -> None:
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    stream.say("ADDED", "pod", {"phase": "Pending", "conditions": [pending]})
    timer = threading.Timer(0.5, stream.end)
    timer.start()
    assert waited(stream, "pod", 0.2).waits_for.startswith("Unschedulable")
    timer.join()


def test_a_server_that_fails_is_told(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object) -> None:
        raise EngineUnavailable("gone")

    monkeypatch.setattr(stream, "watch", gone)
    with pytest.raises(EngineUnavailable):
        waited(stream, "pod")
