"""Containers that make room for others, and come back with files and variables."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import NoSandbox
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.slot_limits import SlotLimits
from agent_tools.containers.spec import ContainerSpec
from agent_tools.engines.engine import EngineContainer
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.limits import MIB
from agent_tools.results.execution import Died, Stream
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.asking import INCLUDE, Clock, code, in_container, outputs, post, until
from tests.gateway.conftest import NewGateway

LOCK = "import threading; lock = threading.Lock()"


class Machine:
    """A gateway's containers, on a machine that can be lost."""

    def __init__(self, data_dir: Path, clock: Clock, **options: Any) -> None:
        self.runtime = Runtime(ProcessEngine(), lambda packages: "none")
        options = {"max_kept_sandboxes": options.get("max_sandboxes", 8), **options}
        config = GatewayConfig(upstream="http://localhost:1/v1", data_dir=data_dir, **options)
        data_dir.mkdir(parents=True, exist_ok=True)
        self.store = Store(config.database_url)
        self.containers = Containers(config, self.store, self.runtime, clock)

    def new(self) -> str:
        return self.containers.create("me", ContainerSpec("c")).id

    def run(self, id_: str, text: str) -> str:
        """Run code as a model would, and return what it is told."""
        lease = ContainerLease(self.containers, id_)
        try:
            return ContainerTool(lease).call({"code": text})
        finally:
            lease.close()

    def lose(self) -> None:
        """End all without a word to the containers."""
        self.runtime.close_all()

    def close(self) -> None:
        self.containers.close()
        self.runtime.close_all()
        self.store.close()


@pytest.fixture
def machine(work_dir: Path, clock: Clock) -> Iterator[Any]:
    made: list[Machine] = []

    def make(**options: Any) -> Machine:
        made.append(Machine(work_dir / "data", clock, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def kept(containers: Containers) -> list[str]:
    return sorted(path.name for path in containers.config.data_dir.glob("variables/*"))


def test_the_longest_unused_sandbox_makes_room_and_its_files_and_variables_stay(new_gateway: NewGateway) -> None:
    def obey(request: dict[str, Any]) -> ScriptedReply:
        last = request["messages"][-1]
        return code(last["content"]) if last["role"] == "user" else ScriptedReply(text="Ok.")

    gateway = new_gateway({"m": obey}, max_sandboxes=1, max_kept_sandboxes=1)
    first, second = (gateway.client().containers.create(name=name).id for name in "ab")
    post(gateway, tools=in_container(first), input=f"x = 1; {LOCK}; open('kept', 'w').write('k')")
    post(gateway, tools=in_container(second), input="x = 2")
    assert gateway.services.containers.running() == {second: False}
    text = httpx.get(f"{gateway.url}/metrics").text
    assert re.search(r"^agent_tools_parked_total 1\.0$", text, re.MULTILINE)
    assert re.search(r"^agent_tools_cold_starts_total 2\.0$", text, re.MULTILINE)
    assert float(re.findall(r"^agent_tools_cold_start_seconds_total (\S+)$", text, re.MULTILINE)[0]) > 0
    (call,) = outputs(post(gateway, tools=in_container(first), input="open('kept').read(), x", include=INCLUDE).json())
    assert call["outputs"][0]["logs"].startswith("('k', 1)")
    told = json.dumps(gateway.upstream.requests[-1]["messages"])
    assert "variables are kept" in told
    assert "These variables are lost, define them again if you need them: lock (TypeError" in told


def test_each_comes_back_with_its_own(machine: Any) -> None:
    one = machine(max_sandboxes=2)
    ids = [one.new() for _ in range(5)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda id_: one.run(id_, f"mine = {id_!r}; count = 0"), ids))
        for _ in range(2):
            for answer in pool.map(lambda id_: one.run(id_, f"count += 1; (mine == {id_!r}, count)"), ids):
                assert "(True, " in answer
    assert len(one.containers.running()) == 2
    assert [one.run(id_, "mine, count").rpartition("(")[2] for id_ in ids] == [f"{id_!r}, 2)\n```" for id_ in ids]


def test_more_are_kept_than_run_at_once(machine: Any) -> None:
    one = machine(max_sandboxes=1, max_kept_sandboxes=3, min_memory_free=0)
    ids = [one.new() for _ in range(3)]
    for id_ in ids:
        one.run(id_, f"mine = {id_!r}; {LOCK}")
    assert one.containers.running() == dict.fromkeys(ids, False)
    for id_ in ids:
        answer = one.run(id_, "mine, type(lock).__name__")
        assert f"('{id_}', 'lock')" in answer
        assert "note" not in answer
    assert one.containers.slots.parked == 0
    assert kept(one.containers) == []


def test_never_fewer_are_kept_than_run_at_once(machine: Any) -> None:
    one = machine(max_sandboxes=2, max_kept_sandboxes=0)
    ids = [one.new() for _ in range(2)]
    for id_ in ids:
        one.run(id_, "x = 1")
    assert one.containers.running() == dict.fromkeys(ids, False)


def test_where_memory_is_short_those_beyond_the_places_are_parked_the_longest_unused_first(
    machine: Any, clock: Clock
) -> None:
    one = machine(max_sandboxes=2, max_kept_sandboxes=10, min_memory_free=100)
    available = [1_000]
    one.containers.slots.room = SlotLimits(one.containers.config, lambda: available[0])
    ids = [one.new() for _ in range(5)]
    for id_ in ids:
        one.run(id_, f"mine = {id_!r}")
        clock.now += 1
    assert list(one.containers.running()) == ids
    available[0] = 99
    assert one.containers.sweep() == 0
    until(lambda: list(one.containers.running()) == ids[3:])  # one after the other, down to the places
    until(lambda: len(kept(one.containers)) == 3)
    assert one.containers.slots.parked == 3
    available[0] = 100
    assert ids[0] in one.run(ids[0], "mine")
    assert len(one.containers.running()) == 3


def test_where_the_machine_does_not_tell_its_memory_the_number_decides() -> None:
    config = GatewayConfig("http://u/v1", max_sandboxes=2, max_kept_sandboxes=4)
    room = SlotLimits(config, lambda: None)
    assert [room.surplus(there) for there in range(3, 7)] == [0, 0, 1, 2]


def test_what_is_told_of_a_sandbox_is_told_once(machine: Any) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    one.run(first, LOCK)
    one.run(second, "1")
    with one.containers.acquire(first):  # for nothing: nobody is told yet
        pass
    assert "These variables are lost" in one.run(first, "1")
    assert "note" not in one.run(first, "2")


def test_an_idle_one_is_stopped_and_goes_on_with_its_variables(machine: Any) -> None:
    one = machine(idle_stop=1.0)
    id_ = one.new()
    one.run(id_, f"x = 1; {LOCK}")
    sandbox = one.containers.slots._live[id_].sandbox._opening.session().recovery.sandbox
    until(lambda: sandbox._idle.is_stopped)
    answer = one.run(id_, "x, type(lock).__name__")
    assert "(1, 'lock')" in answer
    assert "note" not in answer
    until(lambda: sandbox._idle.is_stopped)  # again
    one.containers.close()  # which saves what is stopped
    assert kept(one.containers) == [f"{id_}.parked"]


CLEANING_UP = """
def clean_up():
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        try:
            time.sleep(end - time.monotonic())
        except KeyboardInterrupt:
            print("cut short", flush=True)
"""


@pytest.mark.parametrize(("grace", "is_kept"), [(10.0, True), (0.2, False)])
def test_code_whose_client_left_has_time_to_stop(machine: Any, grace: float, is_kept: bool) -> None:
    one = machine(cancel_grace=grace)
    id_ = one.new()
    slow = "import time\ntry: print('begun', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: clean_up()"
    one.run(id_, CLEANING_UP)
    with one.containers.acquire(id_) as (sandbox, woken):
        woken.result()
        cancelled = threading.Event()
        stream = sandbox.stream(slow, None, cancelled)
        next(stream)
        sandbox.cancel(cancelled)
        outputs = list(stream)
    assert any(isinstance(output, Died) for output in outputs) is not is_kept
    assert is_kept == ("cut short" not in "".join(output.text for output in outputs if isinstance(output, Stream)))


def test_where_variables_are_not_wanted_they_are_lost_and_that_is_told(machine: Any) -> None:
    one = machine(max_sandboxes=1, keep_variables=False)
    first, second = one.new(), one.new()
    one.run(first, "x = 1")
    one.run(second, "x = 2")
    answer = one.run(first, "x")
    assert "variables are lost" in answer
    assert "NameError" in answer
    assert kept(one.containers) == []


def test_a_container_that_is_held_is_not_parked(machine: Any) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    with one.containers.acquire(first) as (sandbox, woken):
        assert woken.result() == ""
        sandbox.run_code("x = 1")
        with pytest.raises(NoSandbox), one.containers.acquire(second):
            pass


def test_whoever_calls_a_container_that_is_being_parked_gets_it_with_its_variables(machine: Any) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    slow = "import time\nclass Slow:\n  def __reduce__(self): time.sleep(1); return int, (7,)\nslow = Slow(); x = 1"
    one.run(first, slow)
    parking = threading.Thread(target=one.run, args=(second, "y = 1"))
    parking.start()
    until(lambda: first in one.containers.slots._locks)
    parking.join()
    assert "(7, 1)" in one.run(first, "slow, x")


def test_variables_count_as_the_owners_bytes_and_go_with_the_container(machine: Any, clock: Clock) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    one.run(first, "big = bytes(3_000_000)")
    before = one.store.get(ContainerRecord, first)
    one.run(second, "1")
    until(lambda: kept(one.containers) == [f"{first}.parked"])
    row = one.store.get(ContainerRecord, first)
    assert row.bytes > 3_000_000
    assert row.last_active_at == before.last_active_at
    (path,) = one.containers.config.data_dir.glob("variables/*")
    assert path.stat().st_mode & 0o777 == 0o600
    clock.now += 10_000
    one.containers.sweep()
    assert kept(one.containers) == []


def test_more_bytes_than_may_be_are_not_kept_and_named(machine: Any) -> None:
    one = machine(max_sandboxes=1, max_variables_bytes=MIB)
    first, second = one.new(), one.new()
    one.run(first, "big = bytes(3_000_000); small = 5")
    one.run(second, "1")
    answer = one.run(first, "small")
    assert "big (it is larger than what is left of 1,048,576 bytes (max_variables_bytes))" in answer
    assert "5" in answer


def test_a_deleted_container_leaves_no_variables(machine: Any) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    one.run(first, "x = 1")
    one.run(second, "x = 1")
    assert kept(one.containers) == [f"{first}.parked"]
    one.containers.delete("me", first)
    assert kept(one.containers) == []


def test_a_gateway_that_stops_keeps_variables_for_the_next_one(machine: Any) -> None:
    one = machine()
    id_ = one.new()
    one.run(id_, "x = 1")
    one.containers.close()
    assert one.runtime.engine.processes == {}
    two = machine()
    answer = two.run(id_, "x")
    assert "variables are kept" in answer
    assert kept(two.containers) == []


def test_a_stop_waits_so_long_for_variables_and_no_longer(machine: Any) -> None:
    one = machine(park_timeout=2, variables_timeout=1_000)
    quick, slow = one.new(), one.new()
    one.run(quick, "x = 1")
    one.run(slow, "import time\nclass Slow:\n  def __reduce__(self): time.sleep(1000); return int, (7,)\nslow = Slow()")
    one.containers.close()  # within the test's own limit
    assert one.containers.running() == {}
    assert slow not in str(kept(one.containers))
    assert one.runtime.engine.processes == {}


def test_where_it_was_asked_for_a_lost_machine_costs_what_came_after_the_last_save(machine: Any, clock: Clock) -> None:
    one = machine(save_every=60.0)
    id_ = one.new()
    one.run(id_, "x = 1")
    assert one.containers.slots.save_due() == 0
    assert kept(one.containers) == []
    clock.now += 61
    assert one.containers.slots.save_due() == 0
    assert kept(one.containers) == [f"{id_}.saved"]
    one.run(id_, "x = 2")
    one.lose()
    two = machine(save_every=60.0)
    answer = two.run(id_, "x")
    assert re.search(r"variables are as they were \d+ seconds ago", answer)
    assert "1" in answer.rpartition("kept.")[2]
    assert kept(two.containers) == [f"{id_}.saved"]


@pytest.mark.parametrize("how", ["saved", "parked"])
def test_a_sandbox_that_has_died_is_not_saved_over_what_was_saved(machine: Any, clock: Clock, how: str) -> None:
    one = machine(save_every=60.0, max_sandboxes=1)
    id_ = one.new()
    one.run(id_, "x = 1")
    clock.now += 61
    assert one.containers.slots.save_due() == 0
    one.run(id_, "x = 2")
    for died in [*one.runtime.engine.processes]:
        one.runtime.engine.remove(EngineContainer(died))
    if how == "saved":
        clock.now += 61
        assert one.containers.slots.save_due() == 0
    one.run(one.new(), "1")
    answer = one.run(id_, "x")
    assert re.search(r"variables are as they were \d+ seconds ago", answer)
    assert "1" in answer.rpartition("kept.")[2]


def test_what_did_not_change_is_not_saved_again(machine: Any, clock: Clock) -> None:
    one = machine(save_every=60.0)
    id_ = one.new()
    one.run(id_, "x = 1")
    for _ in range(2):
        clock.now += 61
        assert one.containers.slots.save_due() == 0
        (path,) = one.containers.config.data_dir.glob("variables/*")
        path.write_bytes(b"mine")
    assert path.read_bytes() == b"mine"


def test_by_default_a_lost_machine_costs_the_variables(machine: Any, clock: Clock) -> None:
    one = machine()
    id_ = one.new()
    one.run(id_, "x = 1")
    clock.now += 1000
    assert one.containers.slots.save_due() == 0
    one.lose()
    assert "variables are lost" in machine().run(id_, "1")


@pytest.mark.parametrize("damage", [b"", b"no archive", b".agent_tools.variables"])
def test_damaged_variables_are_lost_and_the_container_goes_on(machine: Any, damage: bytes) -> None:
    one = machine(max_sandboxes=1)
    first, second = one.new(), one.new()
    one.run(first, "x = 1")
    one.run(second, "x = 1")
    (path,) = one.containers.config.data_dir.glob("variables/*")
    path.write_bytes(damage)
    answer = one.run(first, "6 * 7")
    assert "42" in answer
    assert "variables are lost" in answer
