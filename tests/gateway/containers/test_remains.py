"""The end of a container, whatever its code left behind; and sweeps that go on where something fails."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import sqlalchemy as sa

from agent_tools.containers.deletion import Remains
from agent_tools.containers.failures import ContainerExpired
from agent_tools.containers.records import ContainerRecord, Upload
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import StoredCall
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import INCLUDE, Clock, code, in_container, outputs, post
from tests.gateway.conftest import Gateway, NewGateway
from tests.unit.machine.test_folder import dig


@pytest.fixture
def clock() -> Clock:
    return Clock()


NewServices = Callable[[], Services]


@pytest.fixture
def new_services(process_runtime: Runtime, work_dir: Path, clock: Clock) -> Iterator[NewServices]:
    """Makes a gateway's services; those made later find what the earlier ones kept."""
    made: list[Services] = []

    def make() -> Services:
        if made:
            made.pop().close()
        made.append(Services(GatewayConfig("http://u", data_dir=work_dir / "d", pool=0), process_runtime))
        made[-1].containers.clock = clock
        return made[-1]

    yield make
    made.pop().close()


@pytest.fixture
def services(new_services: NewServices) -> Services:
    return new_services()


def make_container(services: Services) -> str:
    id_ = services.containers.create("me", ContainerSpec("c", idle_minutes=10)).id
    (services.containers.folder(id_) / "private.csv").write_text("private")
    return id_


def keep(services: Services, *ids: str) -> None:
    """From now on the files of these containers cannot be removed."""
    folders = services.config.data_dir / "containers"
    services.containers.endings.remains = Remains(
        folders, services.store, lambda path: path.name not in ids and remove_tree(path)
    )


def status_of(services: Services, id_: str) -> str | None:
    row = services.store.get(ContainerRecord, id_)
    return row and row.status


def test_a_container_is_deleted_however_deep_its_folders_are(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    container = gateway.client().containers.create(name="deep")
    folder = gateway.services.containers.folder(container.id)
    dig(folder, 1_200)
    gateway.client().containers.delete(container.id)
    assert not folder.exists()
    with pytest.raises(openai.NotFoundError):
        gateway.client().containers.retrieve(container.id)


def test_containers_expire_however_deep_the_folders_of_one_are(services: Services, clock: Clock) -> None:
    ids = [make_container(services) for _ in range(3)]
    dig(services.containers.folder(ids[0]), 1_200)
    clock.now += 601
    assert services.sweep() == 0
    assert [status_of(services, id_) for id_ in ids] == ["expired"] * 3
    assert os.listdir(services.config.data_dir / "containers") == []


def test_a_container_is_called_expired_once_its_files_are_gone(
    new_services: NewServices, services: Services, clock: Clock
) -> None:
    ids = [make_container(services) for _ in range(3)]
    keep(services, ids[1])
    clock.now += 601
    assert services.sweep() == 1
    assert [status_of(services, id_) for id_ in ids] == ["expired", "expiring", "expired"]
    assert (services.sweep(), services.sweep_failures, services.containers.endings.remains.failed) == (1, 2, 2)
    with pytest.raises(ContainerExpired, match="Container is expired"):
        services.containers.active("me", ids[1])
    again = new_services()
    assert again.sweep() == 0
    assert not again.containers.folder(ids[1]).exists()
    assert status_of(again, ids[1]) == "expired"


def test_a_container_that_is_asked_for_when_it_is_due_is_expired_though_its_files_stay(
    services: Services, clock: Clock
) -> None:
    id_ = make_container(services)
    keep(services, id_)
    clock.now += 601
    for _ in range(3):
        with pytest.raises(ContainerExpired, match="Container is expired"):
            services.containers.active("me", id_)
    assert services.containers.endings.remains.failed == 1  # then it is the sweep's


def test_deleting_says_so_where_files_stay_and_the_sweep_goes_on(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    services, id_ = gateway.services, gateway.client().containers.create(name="a").id
    keep(services, id_)
    answer = httpx.delete(f"{gateway.url}/v1/containers/{id_}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "container_not_deleted")
    assert gateway.client().containers.retrieve(id_).status == "expired"
    assert post(gateway, tools=in_container(id_)).status_code == 400
    assert httpx.delete(f"{gateway.url}/v1/containers/{id_}").status_code == 503
    keep(services)
    assert services.sweep() == 0
    assert not services.containers.folder(id_).exists()
    assert httpx.get(f"{gateway.url}/v1/containers/{id_}").status_code == 404


def test_a_sweep_goes_on_after_whatever_fails(
    services: Services, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [make_container(services) for _ in range(3)]

    def remove(path: Path) -> bool:
        if path.name == ids[0]:
            raise OSError("the disk is gone")
        return remove_tree(path)

    services.containers.endings.remains = Remains(services.config.data_dir / "containers", services.store, remove)
    uploads = services.config.data_dir / "uploads"
    for name in ("file_a", "file_b"):
        upload = Upload(id=name, owner="me", created_at=0, filename=name, bytes=1, purpose="user_data")
        services.store.add(upload)
    (uploads / "file_a").mkdir()
    (uploads / "file_b").touch()
    services.store.add(StoredCall(id="old", owner="me", created_at=0, tool_answer=""))
    clock.now += 601
    assert services.sweep() == services.sweep_failures == 2
    assert b"agent_tools_sweep_failures_total 2.0" in services.metrics.text()
    assert "the disk" not in caplog.text
    assert [status_of(services, id_) for id_ in ids[1:]] == ["expired", "expired"]
    assert [row.id for row in services.store.find(Upload)] == ["file_a"]
    assert services.store.count(StoredCall) == 0


def test_files_that_an_expired_container_has_all_the_same_are_removed(services: Services, clock: Clock) -> None:
    id_ = make_container(services)
    services.store.change(ContainerRecord, id_, status="expired")
    assert services.sweep() == 0
    assert not services.containers.folder(id_).exists()
    assert status_of(services, id_) == "expired"


def test_code_that_goes_on_after_its_container_was_deleted_leaves_nothing(services: Services) -> None:
    id_ = make_container(services)
    with services.containers.acquire(id_) as (sandbox, _):
        sandbox.run_code("x = 1")
        services.containers.delete("me", id_)
        sandbox.run_code("open('again.txt', 'w').write('again')")
        assert (services.containers.folder(id_) / "again.txt").exists()
    assert not services.containers.folder(id_).exists()
    assert sandbox.container is None


def listed(gateway: Gateway, id_: str) -> list[str]:
    return sorted(each.path for each in gateway.client().containers.files.list(id_))


def test_a_socket_that_code_left_is_not_listed_and_no_hindrance(new_gateway: NewGateway) -> None:
    leave = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('left'); s.listen(); open('a', 'w').write('a')"
    turns = [code(leave), "Ok.", code("'another'"), "Ok.", code("open('a').read()"), "Ok."]
    gateway = new_gateway({"m": turns}, max_sandboxes=1, max_kept_sandboxes=1)
    (first,) = outputs(post(gateway).json())
    id_ = first["container_id"]
    assert listed(gateway, id_) == ["/mnt/data/a"]
    gateway.client().containers.files.create(id_, file=("b", b"b"))
    assert listed(gateway, id_) == ["/mnt/data/a", "/mnt/data/b"]
    post(gateway)  # whose sandbox takes the place of the first
    (call,) = outputs(post(gateway, tools=in_container(id_), include=INCLUDE).json())
    assert call["outputs"] == [{"type": "logs", "logs": "'a'"}]


def test_a_file_whose_name_is_no_text_is_left_out_and_that_is_said(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    id_ = gateway.client().containers.create(name="a").id
    folder = gateway.services.containers.folder(id_)
    for name in (b"bad\xff.txt", b"why\\xff.txt"):
        (folder / os.fsdecode(name)).write_text("z")
    found = httpx.get(f"{gateway.url}/v1/containers/{id_}/files").json()
    assert ([each["path"] for each in found["data"]], found["truncated"]) == (["/mnt/data/why\\xff.txt"], True)
    content = httpx.get(f"{gateway.url}/v1/containers/{id_}/files/{found['data'][0]['id']}/content")
    assert content.text == "z"


def test_a_socket_that_somebody_serves_is_not_listed(new_gateway: NewGateway, work_dir: Path) -> None:
    gateway = new_gateway({})
    id_ = gateway.client().containers.create(name="a").id
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(work_dir / "s"))
        served.listen()
        (work_dir / "s").rename(gateway.services.containers.folder(id_) / "s")
        assert listed(gateway, id_) == []


def test_a_call_writes_its_containers_row_once_at_each_end(services: Services) -> None:
    id_ = make_container(services)
    statements: list[str] = []
    listen = sa.event.listen
    listen(services.store._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with services.containers.acquire(id_) as (sandbox, _):
        sandbox.run_code("open('a', 'w').write('12345')")
    assert sum(statement.startswith("UPDATE containers") for statement in statements) == 2
    container = services.containers.find("me", id_)
    assert container.has_run
    assert container.bytes > 0
