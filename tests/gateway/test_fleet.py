"""A gateway whose containers live on other machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools.fleet import Fleet
from agent_tools.fleet.local import LocalHosts
from tests.gateway.asking import code, post
from tests.gateway.conftest import NewGateway
from tests.unit.fleet.conftest import PicklingLink, process_host


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet(LocalHosts(PicklingLink("a", process_host()), PicklingLink("b", process_host())))
    yield fleet
    fleet.disconnect()


def test_code_runs_variables_live_and_files_are_served(new_gateway: NewGateway, fleet: Fleet) -> None:
    replies = [code("x = 41\nopen('made.txt', 'w').write('by code')"), "Done.", code("print(x + 1)"), "It is 42."]
    gateway = new_gateway({"m": replies}, fleet)
    first = post(gateway).json()
    container = next(item["container_id"] for item in first["output"] if item["type"] == "code_interpreter_call")
    tool = {"type": "code_interpreter", "container": container}
    second = post(gateway, tools=[tool], include=["code_interpreter_call.outputs"]).json()
    call = next(item for item in second["output"] if item["type"] == "code_interpreter_call")
    assert call["outputs"][0]["logs"] == "42\n"
    files = gateway.client().containers.files.list(container).data
    assert [file.path.rsplit("/")[-1] for file in files] == ["made.txt"]
    assert gateway.client().containers.files.content.retrieve(files[0].id, container_id=container).read() == b"by code"
    assert sum(load.taken - load.ready for load in fleet.load().values()) == 1


def test_a_machine_that_is_lost_is_told_and_the_next_response_goes_on(new_gateway: NewGateway, fleet: Fleet) -> None:
    replies = [code("x = 1"), "Done.", code("print('x' in globals())"), "Lost."]
    gateway = new_gateway({"m": replies}, fleet)
    first = post(gateway).json()
    container = next(item["container_id"] for item in first["output"] if item["type"] == "code_interpreter_call")
    used = max(fleet._hosts.links(), key=lambda link: link.host.load().taken - link.host.load().ready)  # type: ignore[attr-defined]
    used.vanish()  # type: ignore[attr-defined]
    tool = {"type": "code_interpreter", "container": container}
    second = post(gateway, tools=[tool], include=["code_interpreter_call.outputs"])
    assert second.status_code == 200
    told = str(second.json()["output"])
    assert "is gone" in told or "False" in told
