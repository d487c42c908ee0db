"""Two processes that share rows and folders: one at a time has the sandbox of a container."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainerElsewhere
from agent_tools.containers.leases import ContainerLeases
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import MemoryRows, Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine
from tests.gateway.asking import Clock, until

LOCK = "import threading; lock = threading.Lock()"


class Service:
    """Processes, by name, each with its containers, on rows and a folder that they share."""

    def __init__(self, data_dir: Path, rows: Rows) -> None:
        self.clock = Clock()
        self.rows = rows
        self.config = GatewayConfig("http://u/v1", data_dir=data_dir, pool=0)
        data_dir.mkdir(parents=True, exist_ok=True)
        self.alive: set[str] = set()
        self.runtimes: dict[str, Runtime] = {}
        self.processes: dict[str, Containers[GatewayConfig]] = {}

    def start(self, name: str) -> Containers[GatewayConfig]:
        self.alive.add(name)
        runtime = self.runtimes[name] = Runtime(ProcessEngine(), lambda packages: "none")
        lease = ContainerLeases(self.rows, name, lambda id_: id_ if id_ in self.alive else "")
        made = self.processes[name] = Containers(self.config, self.rows, runtime, self.clock, lease)
        return made

    def run(self, name: str, id_: str, text: str) -> str:
        lease = ContainerLease(self.processes[name], id_)
        try:
            return ContainerTool(lease).call({"code": text})
        finally:
            lease.close()

    def row(self, id_: str) -> ContainerRecord:
        found = self.rows.get(ContainerRecord, id_)
        assert found
        return found

    def tend(self, name: str, *, until_set: threading.Event) -> None:
        """Do what a gateway does all the time."""
        while not until_set.wait(0.05):
            self.processes[name].endings.drop_taken_over()


@pytest.fixture
def service(work_dir: Path) -> Iterator[Service]:
    store = Store(f"sqlite:///{work_dir / 's.db'}")
    made = Service(work_dir / "data", store)
    for name in ("one", "two"):
        made.start(name)
    ended = threading.Event()
    tending = [threading.Thread(target=made.tend, args=(name,), kwargs={"until_set": ended}) for name in made.processes]
    for each in tending:
        each.start()
    yield made
    ended.set()
    for each in tending:
        each.join()
    for name in made.processes:
        made.processes[name].close()
        made.runtimes[name].close_all()
    store.close()


@pytest.fixture
def new(service: Service) -> Callable[[], str]:
    return lambda: service.processes["one"].create("me", ContainerSpec("c")).id


def test_it_is_told_who_has_it_until_it_is_parked(service: Service, new: Any) -> None:
    id_ = new()
    service.run("one", id_, f"x = 1; {LOCK}")
    assert (service.row(id_).gateway, service.row(id_).generation) == ("one", 1)
    for use in (lambda: service.run("two", id_, "x"), lambda: service.processes["two"].delete("me", id_)):
        with pytest.raises(ContainerElsewhere, match="The gateway one has the container's sandbox"):
            use()
    service.processes["one"].close()
    answer = service.run("two", id_, "x += 1; x")
    assert "2" in answer.rpartition("result")[2]
    assert "variables are kept" in answer
    assert "lock (TypeError" in answer
    assert (service.row(id_).gateway, service.row(id_).generation) == ("two", 2)


def test_while_nobody_else_wants_it_it_stays_where_it_is(service: Service, new: Any) -> None:
    id_ = new()
    service.run("one", id_, LOCK)
    for _ in range(3):
        assert "'lock'" in service.run("one", id_, "type(lock).__name__")
    assert service.row(id_).generation == 1


def test_of_one_that_is_gone_files_are_kept_and_variables_lost(service: Service, new: Any) -> None:
    id_ = new()
    service.run("one", id_, "x = 1; open('kept', 'w').write('k')")
    service.alive.discard("one")
    answer = service.run("two", id_, "open('kept').read(), 'x' in globals()")
    assert "('k', False)" in answer
    assert "variables are lost" in answer
    assert service.row(id_).generation == 2


def test_one_that_only_seemed_gone_drops_what_it_has(service: Service, new: Any) -> None:
    id_ = new()
    service.run("one", id_, "x = 1")
    service.alive.discard("one")
    service.run("two", id_, "x = 2")
    service.alive.add("one")
    until(lambda: service.processes["one"].running() == {})
    assert "2" in service.run("two", id_, "x").rpartition("result")[2]


def test_an_old_sandbox_is_never_taken_for_the_one_of_now(work_dir: Path) -> None:
    """Also where nobody tends: the generation tells."""
    service = Service(work_dir / "data", MemoryRows())
    one, two = service.start("one"), service.start("two")
    id_ = one.create("me", ContainerSpec("c")).id
    service.run("one", id_, "x = 1")
    service.alive.clear()
    service.run("two", id_, "x = 2")
    two.close()  # which saves them
    answer = service.run("one", id_, "x")
    assert "2" in answer.rpartition("result")[2]
    assert "variables are kept" in answer
    one.close()
    for runtime in service.runtimes.values():
        assert runtime.engine.processes == {}  # type: ignore[attr-defined]
        runtime.close_all()


def test_only_its_holder_has_a_container_expire(service: Service, new: Any) -> None:
    id_ = new()
    with service.processes["one"].acquire(id_):
        service.clock.now += 10_000
        assert service.processes["two"].sweep() == 0
        assert service.processes["two"].find("me", id_).status == "active"
        assert service.processes["one"].folder(id_).exists()
    assert service.processes["one"].find("me", id_).status == "active"  # its last use is its release
    service.clock.now += 10_000
    service.processes["two"].sweep()
    assert service.row(id_).status == "active"
    service.processes["one"].sweep()
    assert service.row(id_).status == "expired"
    assert service.row(id_).gateway == ""


def test_the_containers_of_one_that_is_gone_expire_all_the_same(service: Service, new: Any) -> None:
    id_ = new()
    service.run("one", id_, "x = 1")
    service.alive.discard("one")
    service.clock.now += 10_000
    assert service.processes["two"].sweep() == 0
    assert service.row(id_).status == "expired"
