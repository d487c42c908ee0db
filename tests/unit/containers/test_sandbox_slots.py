"""Slots of sandboxes: whatever one container waits for, others are taken and ended meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.containers.live_container import TakenSandbox
from agent_tools.containers.sandbox_slots import Slots
from agent_tools.errors import InvalidParams
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools.tool_sandbox import ToolSandbox
from tests.doubles import ProcessEngine


class Owner:
    """An owner whose rows answer when they are let."""

    def __init__(self, work_dir: Path, runtime: Runtime) -> None:
        self.clock = time.time
        self.rows_answer, self.is_asked = threading.Event(), threading.Event()
        self.gone = list[str]()
        self._work_dir, self._runtime = work_dir, runtime

    def taken(self, generation: int = 1) -> TakenSandbox:
        return TakenSandbox(self._sandbox, generation, has_run=False)

    def slowly_taken(self) -> TakenSandbox:
        self.ask()
        return self.taken()

    def ask(self) -> bool:
        self.is_asked.set()
        assert self.rows_answer.wait(60)
        return True

    def sandbox_gone(self, id_: str) -> None:
        self.gone.append(id_)

    def was_parked(self, id_: str) -> None:
        """Nothing is counted."""

    def tidy(self, id_: str, sandbox: ToolSandbox) -> None:
        sandbox.close()

    def _sandbox(self) -> ToolSandbox:
        return ToolSandbox({"work_dir": str(self._work_dir)}, runtime=self._runtime)


@pytest.fixture
def owner(work_dir: Path) -> Iterator[Owner]:
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    yield Owner(work_dir, runtime)
    runtime.close_all()


@pytest.fixture
def slots(owner: Owner, work_dir: Path) -> Iterator[Slots]:
    config = ContainersConfig(data_dir=work_dir, max_sandboxes=2, max_kept_sandboxes=2)
    found = Slots(config, KeptVariables(config), owner)
    yield found
    owner.rows_answer.set()
    found.close()


@pytest.fixture
def pool(owner: Owner) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found
        owner.rows_answer.set()


def test_no_other_container_waits_for_the_rows(slots: Slots, owner: Owner, pool: ThreadPoolExecutor) -> None:
    slow = pool.submit(slots.take_sandbox, "slow", owner.slowly_taken)
    assert owner.is_asked.wait(60)
    other = slots.take_sandbox("other", owner.taken)
    assert other
    assert slots.running() == {}
    slots.release("other", other)
    assert slots.end("other", lambda: True, even_if_in_use=False)
    assert not slow.done()
    owner.rows_answer.set()
    assert slow.result(60)


def test_one_that_is_ended_is_not_taken_meanwhile(slots: Slots, owner: Owner, pool: ThreadPoolExecutor) -> None:
    first = slots.take_sandbox("a", owner.taken)
    assert first
    slots.release("a", first)
    ending = pool.submit(slots.end, "a", owner.ask, even_if_in_use=False)
    assert owner.is_asked.wait(60)
    taking = pool.submit(slots.take_sandbox, "a", lambda: owner.taken(2))
    assert slots.is_in_use("a")
    assert not taking.done()
    owner.rows_answer.set()
    assert ending.result(60)
    second = taking.result(60)
    assert second is not None
    assert second is not first


def test_those_that_are_being_taken_count(slots: Slots, owner: Owner, pool: ThreadPoolExecutor) -> None:
    slow = [pool.submit(slots.take_sandbox, id_, owner.slowly_taken) for id_ in ("a", "b")]
    while len(slots._locks.taken) < len(slow):
        time.sleep(0.01)
    with pytest.raises(NoSandbox):
        slots.take_sandbox("c", owner.taken)
    owner.rows_answer.set()
    assert all(each.result(60) for each in slow)


def test_a_container_whose_sandbox_cannot_be_made_is_released(slots: Slots, owner: Owner) -> None:
    def fails() -> ToolSandbox:
        raise InvalidParams("A skill's copy is gone.")

    with pytest.raises(InvalidParams):
        slots.take_sandbox("a", lambda: TakenSandbox(fails, 1, has_run=False))
    assert owner.gone == ["a"]
    assert slots.take_sandbox("a", owner.taken)


def test_one_that_could_not_be_taken_holds_nobody_up(slots: Slots, owner: Owner) -> None:
    def away() -> TakenSandbox:
        raise LookupError("the rows are away")

    for _ in range(3):
        with pytest.raises(LookupError):
            slots.take_sandbox("a", away)
    assert slots.take_sandbox("a", lambda: None) is None
    assert slots.take_sandbox("a", owner.taken)
    assert slots.take_sandbox("b", owner.taken)


def test_one_that_is_being_taken_is_dropped_afterwards(slots: Slots, owner: Owner, pool: ThreadPoolExecutor) -> None:
    taking = pool.submit(slots.take_sandbox, "a", owner.slowly_taken)
    assert owner.is_asked.wait(60)
    dropping = pool.submit(slots.drop, "a", 1)
    while not dropping.running():
        time.sleep(0.01)
    assert owner.gone == []
    owner.rows_answer.set()
    assert taking.result(60)
    dropping.result(60)
    assert (slots.generations(), owner.gone) == ({}, ["a"])


def test_one_that_is_dropped_is_taken_once_its_owner_knows(
    slots: Slots, owner: Owner, pool: ThreadPoolExecutor
) -> None:
    first = slots.take_sandbox("a", owner.taken)
    assert first
    first.woken.result(60)
    close, seen = first.sandbox.close, list[object]()

    def close_slowly() -> None:
        owner.ask()
        close()

    def taken() -> TakenSandbox:
        seen.extend(owner.gone)
        return owner.taken()

    first.sandbox.close = close_slowly  # type: ignore[method-assign]
    dropping = pool.submit(slots.drop, "a", 1)
    assert owner.is_asked.wait(60)
    assert slots.is_in_use("a")
    taking = pool.submit(slots.take_sandbox, "a", taken)
    owner.rows_answer.set()
    dropping.result(60)
    second = taking.result(60)
    assert second
    assert second is not first
    assert seen == ["a"]


def test_what_is_pinned_takes_no_slot_of_code(slots: Slots, owner: Owner) -> None:
    shells = []
    for id_ in ("a", "b"):
        live = slots.take_sandbox(id_, owner.taken)
        assert live
        live.woken.result(60)
        shells.append(slots.pin(id_, 1))
        slots.release(id_, live)
    first, second = (slots.take_sandbox(id_, owner.taken) for id_ in ("a", "b"))
    assert first
    assert second
    with pytest.raises(NoSandbox):
        slots.take_sandbox("c", owner.taken)
    for id_, live in (("a", first), ("b", second)):
        slots.release(id_, live)
    third = slots.take_sandbox("c", owner.taken)  # the one unused for longest makes room
    assert third
    third.woken.result(60)
    assert [each.is_parked for each in shells] == [True, False]
    slots.unpin(shells[0], 1)


def test_the_lowest_rank_makes_room_first(slots: Slots, owner: Owner) -> None:
    lives = {}
    for id_, rank in (("command", 2), ("shell", 1)):
        live = slots.take_sandbox(id_, owner.taken)
        assert live
        live.woken.result(60)
        lives[id_] = slots.pin(id_, rank)
        slots.release(id_, live)
    other = slots.take_sandbox("other", owner.taken)
    assert other
    other.woken.result(60)
    assert {id_: live.is_parked for id_, live in lives.items()} == {"command": False, "shell": True}


def test_a_look_starts_nothing_and_takes_no_place(slots: Slots, owner: Owner) -> None:
    assert slots.acquire_if_running("a") is None
    live = slots.take_sandbox("a", owner.taken)
    assert live
    live.woken.result(60)
    assert slots.acquire_if_running("a") is None  # no sandbox was started
    live.sandbox.start()
    looks = [slots.acquire_if_running("a") for _ in range(3)]
    slots.release("a", live)
    used_at = live.used_at
    taken = [slots.take_sandbox(id_, owner.taken) for id_ in ("b",)]
    assert all(taken)
    for look in looks:
        assert look is live
        slots.release("a", live, is_use=False)
    assert live.used_at == used_at
    assert live.holders == 0
