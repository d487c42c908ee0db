"""Containers of an owner who may have no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import TooManyContainers
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import Rows
from agent_tools.containers.spec import ContainerSpec
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
