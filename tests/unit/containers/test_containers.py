"""Containers of an owner who may have no more, or none."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import KeyRevoked, TooManyContainers
from agent_tools.containers.records import NAMED, ContainerRecord, Record
from agent_tools.containers.rows import MemoryRows, Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.engines.guest import Guest
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine


def test_an_owner_at_the_limit_expires_only_their_own_containers(rows: Rows, work_dir: Path) -> None:
    config = ContainersConfig(data_dir=work_dir, pool=0, max_containers=2)
    containers: Containers[Any] = Containers(config, rows, Runtime(ProcessEngine(), lambda packages: "none"))
    theirs = containers.create("bob", ContainerSpec("b")).id
    first, second = (containers.create("ann", ContainerSpec(name)).id for name in "ab")
    rows.change(ContainerRecord, theirs, last_active_at=0)
    with pytest.raises(TooManyContainers):
        containers.create("ann", ContainerSpec("c"))
    rows.change(ContainerRecord, first, last_active_at=0)
    third = containers.create("ann", ContainerSpec("c")).id
    active = rows.find(ContainerRecord, status="active")
    assert {row.id for row in active} == {theirs, second, third}
    containers.close()


def test_a_sweep_spares_a_container_that_is_used_meanwhile(
    rows: Rows, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ContainersConfig(data_dir=work_dir, pool=0)
    containers: Containers[Any] = Containers(config, rows, Runtime(ProcessEngine(), lambda packages: "none"))
    idle = {containers.create("ann", ContainerSpec(name)).id for name in "ab"}
    for id_ in idle:
        rows.change(ContainerRecord, id_, last_active_at=0)
    end, ended = containers.slots.end, list[str]()

    def end_slowly(id_: str, begin: Callable[[], bool], *, even_if_in_use: bool) -> bool:
        ended.append(id_)
        for other in idle - set(ended):
            rows.change(ContainerRecord, other, last_active_at=time.time())
        return end(id_, begin, even_if_in_use=even_if_in_use)

    monkeypatch.setattr(containers.slots, "end", end_slowly)
    assert containers.sweep() == 0
    assert [row.id for row in rows.find(ContainerRecord, status="active")] == ended[1:]
    containers.close()


class SlowRows(MemoryRows):
    """Rows that answer a count once eight threads wait for one, or one alone has waited for long."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = threading.Barrier(8)

    def amount(self, kind: type[Record], **where: Any) -> tuple[int, int]:
        found = super().amount(kind, **where)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._counting.wait(0.5)
        return found


def test_containers_that_are_made_at_once_stay_within_the_limit(work_dir: Path) -> None:
    rows, config = SlowRows(), ContainersConfig(data_dir=work_dir, pool=0, max_containers=2)
    containers: Containers[Any] = Containers(config, rows, Runtime(ProcessEngine(), lambda packages: "none"))

    def made(_: int) -> bool:
        with contextlib.suppress(TooManyContainers):
            return bool(containers.create("ann", ContainerSpec("c")))
        return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(made, range(8))) == 2
    assert len(rows.find(ContainerRecord, status="active")) == 2
    containers.close()


def test_containers_of_one_owner_get_their_folders_at_once(work_dir: Path) -> None:
    at_once = threading.Barrier(4)

    class SlowRuntime(Runtime):
        def guest(self, work_dir: Path | None = None) -> Guest:
            at_once.wait(60)
            return super().guest(work_dir)

    config = ContainersConfig(data_dir=work_dir, pool=0)
    containers: Containers[Any] = Containers(
        config, MemoryRows(), SlowRuntime(ProcessEngine(), lambda packages: "none")
    )
    with ThreadPoolExecutor(4) as pool:
        made = pool.map(lambda _: containers.create("ann", ContainerSpec("c")).id, range(4))
        assert len(set(made)) == 4
    containers.close()


def test_an_owner_who_is_revoked_meanwhile_gets_no_container(work_dir: Path) -> None:
    owners, rows = {"ann"}, MemoryRows()

    class RevokingRuntime(Runtime):
        def guest(self, work_dir: Path | None = None) -> Guest:
            owners.clear()
            return super().guest(work_dir)

    runtime = RevokingRuntime(ProcessEngine(), lambda packages: "none")
    containers: Containers[Any] = Containers(ContainersConfig(data_dir=work_dir, pool=0), rows, runtime)
    containers.may_use = lambda owner: owner in owners
    with pytest.raises(KeyRevoked):
        containers.create("ann", ContainerSpec("c"))
    assert (rows.find(ContainerRecord), list((work_dir / "containers").iterdir())) == ([], [])
    containers.close()


def test_an_owner_who_was_revoked_starts_nothing_after_the_stop(rows: Rows, work_dir: Path) -> None:
    config, runtime = ContainersConfig(data_dir=work_dir, pool=0), Runtime(ProcessEngine(), lambda packages: "none")
    containers: Containers[Any] = Containers(config, rows, runtime)
    spec, owners = ContainerSpec("c", origin=f"{NAMED}test"), {"ann", "bob"}
    ids = {owner: containers.named(owner, spec, 9).id for owner in ("ann", "bob")}
    containers.may_use = lambda owner: owner in owners
    with containers.acquire(ids["ann"]) as (sandbox, _):
        sandbox.start()
        owners.remove("ann")
        with pytest.raises(KeyRevoked), containers.acquire(ids["ann"]):
            pass
        containers.stop({"ann"})
    for again in (containers.use(ids["ann"]), containers.pin(ids["ann"], 1, lambda sandbox: sandbox.start())):
        with pytest.raises(KeyRevoked), again:
            pass
    with pytest.raises(KeyRevoked):
        containers.create("ann", spec)
    assert containers.running() == {}
    row = rows.get(ContainerRecord, ids["ann"])
    assert row
    assert row.gateway == ""
    with containers.use(ids["bob"]) as (sandbox, _):
        assert sandbox.is_alive
    containers.close()
