"""Fields that describe a new container."""

from __future__ import annotations

from agent_tools.gateway.requests.fields import MAX_FILES
from tests.gateway.asking import post, refused, upload
from tests.gateway.conftest import NewGateway


def test_a_new_container_is_given_so_many_files(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    id_ = upload(gateway.client(), 10).id
    assert gateway.client().containers.create(name="a", file_ids=[id_] * MAX_FILES).name == "a"
    auto = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [id_] * (MAX_FILES + 1)}}
    assert post(gateway, tools=[auto]).json()["error"]["param"] == "tools[0].container.file_ids"
    assert refused(lambda: gateway.client().containers.create(name="a", file_ids=[id_] * (MAX_FILES + 1)))[0] == 400
