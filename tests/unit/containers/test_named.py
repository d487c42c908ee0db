"""Containers by name: of processes that ask at the same time, one makes it, and all have the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainerExists
from agent_tools.containers.leases import ContainerLeases
from agent_tools.containers.records import NAMED, ContainerRecord, Record
from agent_tools.containers.rows import MemoryRows, Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.store.store import Store
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine

SPEC = ContainerSpec("chat", origin=f"{NAMED}ann")


class LateRows(Store):
    """Rows whose first writers wait for each other, so that each has looked before one writes."""

    def __init__(self, writers: int, folder: Path) -> None:
        super().__init__(f"sqlite:///{folder}/rows.db")
        self.left, self.arrived = writers, threading.Barrier(writers)

    def add_if_new(self, *records: Record) -> bool:
        self.left -= 1
        if self.left >= 0:
            self.arrived.wait(30)
        return super().add_if_new(*records)


def containers(rows: Rows, folder: Path, runtime: Runtime, gateway: str = "one", **settings: Any) -> Containers[Any]:
    config = ContainersConfig(data_dir=folder, pool=0, **settings)
    return Containers(config, rows, runtime, leases=ContainerLeases(rows, gateway, lambda _: True))


@pytest.fixture
def runtime() -> Any:
    made = Runtime(ProcessEngine(), lambda packages: "none")
    yield made
    made.close_all()


def test_two_gateways_that_ask_at_once_have_one_container(work_dir: Path, runtime: Runtime) -> None:
    rows = LateRows(2, work_dir)
    both = [containers(rows, work_dir, runtime, name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: each.named("ann", SPEC, 9).id, both))
    assert found[0] == found[1] == both[0].named("ann", SPEC, 9).id
    assert rows.count(ContainerRecord) == 1
    assert both[0].folder(found[0]).is_dir()
    rows.close()


def test_a_name_is_used_again_after_its_container(rows: Rows, work_dir: Path, runtime: Runtime) -> None:
    here = containers(rows, work_dir, runtime)
    ids = []
    for _ in range(3):
        ids.append(here.named("ann", SPEC, 9).id)
        assert here.named("ann", SPEC, 9).id == ids[-1]
        here.delete("ann", ids[-1])
    assert len(set(ids)) == 3
    assert here.named("bob", SPEC, 9).id != here.named("ann", ContainerSpec("chat", origin=f"{NAMED}bob"), 9).id


def test_an_id_is_given_once(work_dir: Path, runtime: Runtime) -> None:
    here = containers(MemoryRows(), work_dir, runtime)
    made = here.create("ann", SPEC, "cntr_1")
    with pytest.raises(ContainerExists):
        here.create("ann", SPEC, "cntr_1")
    assert here.folder(made.id).is_dir()
