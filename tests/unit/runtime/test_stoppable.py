"""An engine whose owner can stop waiting for it: starts that are given up, and removals behind their callers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from agent_tools.engines.engine import Engine, EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import EngineUnavailable
from agent_tools.runtime.stoppable import StoppableEngine, Stopping
from tests.waiting import until

SPEC = SandboxSpec("none", None, Path("/"), Guest.own(), Isolation(), {})


class SlowEngine:
    """Starts and removes nothing real, each once `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked: list[str] = []
        self.removed: list[str] = []
        self.failure: Exception | None = None
        self.interrupts = False

    def start(self, spec: SandboxSpec) -> EngineContainer:
        id_ = f"c{len(self.asked)}"
        self.asked.append(id_)
        if self.interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        self.go_on.wait()
        if self.failure:
            raise self.failure
        return EngineContainer(id_)

    def remove(self, sandbox: EngineContainer) -> None:
        self.go_on.wait()
        self.removed.append(sandbox.id)

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        return None


@pytest.fixture
def slow() -> Iterator[SlowEngine]:
    slow = SlowEngine()
    yield slow
    slow.go_on.set()


@pytest.fixture
def engine(slow: SlowEngine) -> StoppableEngine:
    return StoppableEngine(cast(Engine, slow))


def test_until_the_stop_it_is_the_engine(slow: SlowEngine, engine: StoppableEngine) -> None:
    slow.go_on.set()
    sandbox = engine.start(SPEC)
    assert engine.last_words(sandbox, SPEC) is None
    engine.remove(sandbox)
    assert slow.removed == [sandbox.id]
    slow.failure = EngineUnavailable("No engine answers.")
    with pytest.raises(EngineUnavailable, match="answers"):
        engine.start(SPEC)


def test_a_stop_ends_starts_and_what_comes_up_later_is_removed(slow: SlowEngine, engine: StoppableEngine) -> None:
    with ThreadPoolExecutor() as pool:
        starts = [pool.submit(engine.start, SPEC) for _ in range(3)]
        until(lambda: len(slow.asked) == 3)
        engine.stop()
        for start in starts:
            with pytest.raises(Stopping):
                start.result()
    with pytest.raises(Stopping):
        engine.start(SPEC)
    assert (len(slow.asked), slow.removed) == (3, [])
    slow.go_on.set()
    engine.settle()
    assert sorted(slow.removed) == ["c0", "c1", "c2"]


def test_after_a_stop_removals_go_on_behind_and_each_happens_once(slow: SlowEngine, engine: StoppableEngine) -> None:
    slow.go_on.set()
    made = [engine.start(SPEC) for _ in range(20)]
    slow.go_on.clear()
    engine.stop()
    for sandbox in made[:15]:
        engine.remove(sandbox)
    engine.remove_rest()
    engine.remove(made[0])
    engine.settle(time.monotonic())  # a deadline that has passed
    assert slow.removed == []
    with pytest.raises(Stopping):  # one that waits for its guest
        engine.last_words(made[0], SPEC)
    slow.go_on.set()
    engine.settle()
    assert sorted(slow.removed) == sorted(each.id for each in made)


def test_a_start_that_is_interrupted_leaves_no_sandbox(slow: SlowEngine, engine: StoppableEngine) -> None:
    slow.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        engine.start(SPEC)
    slow.go_on.set()
    engine.settle()
    assert slow.removed == ["c0"]


def test_a_removal_that_fails_in_an_unknown_way_keeps_nothing_waiting(slow: SlowEngine) -> None:
    class Failing(SlowEngine):
        def remove(self, sandbox: EngineContainer) -> None:
            super().remove(sandbox)
            raise OSError(5, "Input/output error")

    failing = Failing()
    failing.go_on.set()
    engine = StoppableEngine(cast("Engine", failing))
    started = [engine.start(SPEC) for _ in range(12)]
    engine.stop()
    for each in started:
        engine.remove(each)
    engine.settle()
    assert len(failing.removed) == 12
