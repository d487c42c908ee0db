"""Containers whose code is audited: by owner, key, container and origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import ContainerExists
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox.audit import AuditUnavailable


@pytest.fixture
def containers(tmp_path: Path, process_runtime: Runtime) -> Iterator[Containers]:
    config = GatewayConfig("http://u", data_dir=tmp_path, pool=0, audit=str(tmp_path / "audit"))
    store = Store(config.database_url)
    made = Containers(config, store, process_runtime)
    made.name_of = lambda owner: "alice"
    yield made
    made.close()
    store.close()


def test_containers_and_their_runs_are_audited_by_owner(containers: Containers, tmp_path: Path) -> None:
    row = containers.create("a" * 32, ContainerSpec("auto", origin="response"))
    with containers.use(row.id) as (sandbox, _):
        sandbox.run_code("6 * 7")
    assert containers.endings.delete(row)
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["container_made", "begun", "ended", "container_deleted"]
    assert {line["container"] for line in lines} == {row.id}
    assert [line.get("key") for line in lines] == ["alice", "alice", "alice", None]
    assert lines[1]["owner"] == "a" * 32
    assert lines[1]["origin"] == "response"


def test_no_container_is_made_where_the_log_cannot_be_written(containers: Containers, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    with pytest.raises(AuditUnavailable, match="nothing runs"):
        containers.create("a" * 32, ContainerSpec("auto"))
    assert not list(tmp_path.glob("containers/*"))
    assert not containers._rows.find(ContainerRecord)


def test_a_container_that_exists_already_is_not_audited_as_made(containers: Containers, tmp_path: Path) -> None:
    row = containers.create("a" * 32, ContainerSpec("auto"))
    with pytest.raises(ContainerExists):
        containers.create("a" * 32, ContainerSpec("auto"), row.id)
    assert (tmp_path / "audit").read_text().count("container_made") == 1
