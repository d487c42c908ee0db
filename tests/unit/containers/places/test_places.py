"""Places of sandboxes: whatever one container waits for, others are taken and ended meanwhile."""

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
from agent_tools.containers.sandbox_slots import Places
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools.code_interpreter import CodeInterpreter
from tests.doubles import ProcessEngine


class Owner:
    """An owner whose rows answer when they are let."""

    def __init__(self, work_dir: Path, runtime: Runtime) -> None:
        self.clock = time.time
        self.rows_answer, self.is_asked = threading.Event(), threading.Event()
        self._work_dir, self._runtime = work_dir, runtime

    def taken(self, generation: int = 1) -> TakenSandbox:
        return TakenSandbox(self._interpreter, generation, has_run=False)

    def slowly_taken(self) -> TakenSandbox:
        self.ask()
        return self.taken()

    def ask(self) -> bool:
        self.is_asked.set()
        assert self.rows_answer.wait(60)
        return True

    def sandbox_gone(self, id_: str) -> None:
        """Nobody else is there."""

    def was_parked(self, id_: str) -> None:
        """Nothing is counted."""

    def tidy(self, id_: str, interpreter: CodeInterpreter) -> None:
        interpreter.close()

    def _interpreter(self) -> CodeInterpreter:
        return CodeInterpreter({"work_dir": str(self._work_dir)}, runtime=self._runtime)


@pytest.fixture
def owner(work_dir: Path) -> Iterator[Owner]:
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    yield Owner(work_dir, runtime)
    runtime.close_all()


@pytest.fixture
def places(owner: Owner, work_dir: Path) -> Iterator[Places]:
    config = ContainersConfig(data_dir=work_dir, max_sandboxes=2, max_kept_sandboxes=2)
    found = Places(config, KeptVariables(config), owner)
    yield found
    owner.rows_answer.set()
    found.close()


@pytest.fixture
def pool(owner: Owner) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found
        owner.rows_answer.set()


def test_no_other_container_waits_for_the_rows(places: Places, owner: Owner, pool: ThreadPoolExecutor) -> None:
    slow = pool.submit(places.take_sandbox, "slow", owner.slowly_taken)
    assert owner.is_asked.wait(60)
    other = places.take_sandbox("other", owner.taken)
    assert other
    assert places.running() == {}
    places.release("other", other)
    assert places.end("other", lambda: True, even_if_in_use=False)
    assert not slow.done()
    owner.rows_answer.set()
    assert slow.result(60)


def test_one_that_is_ended_is_not_taken_meanwhile(places: Places, owner: Owner, pool: ThreadPoolExecutor) -> None:
    first = places.take_sandbox("a", owner.taken)
    assert first
    places.release("a", first)
    ending = pool.submit(places.end, "a", owner.ask, even_if_in_use=False)
    assert owner.is_asked.wait(60)
    taking = pool.submit(places.take_sandbox, "a", lambda: owner.taken(2))
    assert places.is_in_use("a")
    assert not taking.done()
    owner.rows_answer.set()
    assert ending.result(60)
    second = taking.result(60)
    assert second is not None
    assert second is not first


def test_those_that_are_being_taken_count(places: Places, owner: Owner, pool: ThreadPoolExecutor) -> None:
    slow = [pool.submit(places.take_sandbox, id_, owner.slowly_taken) for id_ in ("a", "b")]
    while len(places._turns.taken) < len(slow):
        time.sleep(0.01)
    with pytest.raises(NoSandbox):
        places.take_sandbox("c", owner.taken)
    owner.rows_answer.set()
    assert all(each.result(60) for each in slow)


def test_one_that_could_not_be_taken_holds_nobody_up(places: Places, owner: Owner) -> None:
    def away() -> TakenSandbox:
        raise LookupError("the rows are away")

    for _ in range(3):
        with pytest.raises(LookupError):
            places.take_sandbox("a", away)
    assert places.take_sandbox("a", lambda: None) is None
    assert places.take_sandbox("a", owner.taken)
    assert places.take_sandbox("b", owner.taken)


def test_what_is_attended_takes_no_place_of_code(places: Places, owner: Owner) -> None:
    shells = []
    for id_ in ("a", "b"):
        live = places.take_sandbox(id_, owner.taken)
        assert live
        live.woken.result(60)
        shells.append(places.attend(id_, 1))
        places.release(id_, live)
    first, second = (places.take_sandbox(id_, owner.taken) for id_ in ("a", "b"))
    assert first
    assert second
    with pytest.raises(NoSandbox):
        places.take_sandbox("c", owner.taken)
    for id_, live in (("a", first), ("b", second)):
        places.release(id_, live)
    third = places.take_sandbox("c", owner.taken)  # the one unused for longest makes room
    assert third
    third.woken.result(60)
    assert [each.is_parked for each in shells] == [True, False]
    places.leave(shells[0], 1)


def test_the_lowest_rank_makes_room_first(places: Places, owner: Owner) -> None:
    lives = {}
    for id_, rank in (("command", 2), ("shell", 1)):
        live = places.take_sandbox(id_, owner.taken)
        assert live
        live.woken.result(60)
        lives[id_] = places.attend(id_, rank)
        places.release(id_, live)
    other = places.take_sandbox("other", owner.taken)
    assert other
    other.woken.result(60)
    assert {id_: live.is_parked for id_, live in lives.items()} == {"command": False, "shell": True}


def test_a_look_starts_nothing_and_takes_no_place(places: Places, owner: Owner) -> None:
    assert places.pin_if_running("a") is None
    live = places.take_sandbox("a", owner.taken)
    assert live
    live.woken.result(60)
    assert places.pin_if_running("a") is None  # no sandbox was started
    live.interpreter.start()
    looks = [places.pin_if_running("a") for _ in range(3)]
    places.release("a", live)
    used_at = live.used_at
    taken = [places.take_sandbox(id_, owner.taken) for id_ in ("b",)]
    assert all(taken)
    for look in looks:
        assert look is live
        places.release("a", live, is_use=False)
    assert live.used_at == used_at
    assert live.holders == 0
