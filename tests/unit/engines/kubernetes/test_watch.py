"""One watch for all who wait: a double of the API server's stream, with many waiting."""

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

from agent_tools.engines.kubernetes.api import Lines, Progress, Watch, progress_of
from agent_tools.errors import EngineUnavailable

RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}


class Stream:
    """The part of an Api that a watch asks: begins with what is there, then has what is said."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.there: dict[str, dict[str, Any]] = {}
        self.queues: list[queue.Queue[bytes]] = []
        self.opened = self.most = 0

    @contextlib.contextmanager
    def watch(self, path: str, opening: float, seconds: float, query: dict[str, str]) -> Iterator[Lines]:
        own: queue.Queue[bytes] = queue.Queue()
        with self.lock:
            self.opened += 1
            self.queues.append(own)
            self.most = max(self.most, len(self.queues))
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


def waited(watch: Watch, name: str, seconds: float = 20) -> Progress:
    with watch.expect(name):
        return watch.wait(name, time.monotonic() + seconds)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def watch(stream: Stream) -> Watch:
    return Watch(stream, "/pods", "a=b", progress_of)  # type: ignore[arg-type]


def test_many_wait_on_one_watch_and_each_gets_its_own(stream: Stream, watch: Watch) -> None:
    names = [f"pod-{number}" for number in range(12)]
    with ThreadPoolExecutor(len(names)) as pool:
        waiting = {name: pool.submit(waited, watch, name) for name in names}
        while len(watch._known) < len(names):
            time.sleep(0.01)
        for name in reversed(names):
            stream.say("MODIFIED", name, RUNNING)
        assert all(each.result(30).is_running for each in waiting.values())
    assert stream.most == 1
    assert watch._known == {}
    assert stream.queues == []


def test_what_was_there_before_is_not_missed(stream: Stream, watch: Watch) -> None:
    stream.say("ADDED", "pod", RUNNING)
    assert waited(watch, "pod").is_running


def test_a_watch_that_ends_is_begun_anew(stream: Stream, watch: Watch) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waited, watch, "pod")
        while not stream.queues:
            time.sleep(0.01)
        stream.end()
        while stream.opened < 2:
            time.sleep(0.01)
        stream.say("MODIFIED", "pod", RUNNING)
        assert waiting.result(30).is_running


def test_one_that_somebody_deletes_is_told(stream: Stream, watch: Watch) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waited, watch, "pod")
        while not stream.queues:
            time.sleep(0.01)
        stream.say("DELETED", "pod", {})
        assert "deleted" in waiting.result(30).failure


def test_at_the_deadline_it_says_how_far_it_is(stream: Stream, watch: Watch) -> None:
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    stream.say("ADDED", "pod", {"phase": "Pending", "conditions": [pending]})
    timer = threading.Timer(0.5, stream.end)
    timer.start()
    assert waited(watch, "pod", 0.2).waits_for.startswith("Unschedulable")
    timer.join()


def test_a_server_that_fails_is_told_to_each_who_waits(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object) -> None:
        raise EngineUnavailable("gone")

    monkeypatch.setattr(watch._api, "watch", gone)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(waited, watch, f"pod-{number}") for number in range(3)]
        for each in waiting:
            with pytest.raises(EngineUnavailable):
                each.result(30)
    assert watch._known == {}
