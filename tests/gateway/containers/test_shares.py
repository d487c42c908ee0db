"""The share of each key in containers and uploads; and the disk that everyone shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_tools.containers.failures import StorageFull
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.shares import Shares
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.limits import MIB
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, KEYS, code, nearly_full, outputs, refused, upload
from tests.gateway.conftest import NewGateway


def test_uploads_have_a_share_of_bytes_and_of_number_for_each_key(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, api_keys=KEYS, max_uploads_bytes=1000, max_uploads=3)
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    first = upload(mine, 600)
    status, kind, message = refused(lambda: upload(mine, 401))
    assert (status, kind) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/files/" in message
    upload(mine, 400)
    assert "DELETE /v1/files/" in refused(lambda: upload(mine, 1))[2]
    upload(theirs, 1000)
    mine.files.delete(first.id)
    upload(mine, 1), upload(mine, 1)
    assert refused(lambda: upload(mine, 1))[:2] == (400, "storage_limit_exceeded")
    assert len(list((gateway.services.config.data_dir / "uploads").iterdir())) == 4


def test_files_in_containers_have_a_share_for_each_key(new_gateway: NewGateway) -> None:
    write = code(f"open('big', 'wb').write(bytes({2 * MIB}))")
    gateway = new_gateway({"m": [write, "Ok."]}, api_keys=KEYS, max_containers_bytes=3 * MIB)
    mine, theirs = gateway.client(KEYS[0]), gateway.client(KEYS[1])
    tools: Any = [CODE_TOOL]
    body = mine.responses.create(model="m", input="Go.", tools=tools).to_dict()
    made = outputs(body)[0]["container_id"]
    put = lambda size: mine.containers.files.create(made, file=("b", b"b" * size))  # noqa: E731
    for size in (2 * MIB + 100_000, MIB + 100_000):
        assert refused(lambda size=size: put(size))[:2] == (400, "storage_limit_exceeded")
    put(MIB)
    status, kind, message = refused(lambda: mine.containers.create(name="another"))
    assert (status, kind) == (400, "storage_limit_exceeded")
    assert "DELETE /v1/containers/" in message
    assert refused(lambda: mine.responses.create(model="m", input="Go.", tools=tools))[:2] == (status, kind)
    assert refused(lambda: put(1))[:2] == (status, kind)
    theirs.containers.create(name="theirs")
    mine.containers.delete(made)
    mine.containers.create(name="another")


def test_code_may_write_what_is_left_of_its_keys_share(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]}, max_containers_bytes=5 * MIB, max_container_bytes=4 * MIB)
    client, store = gateway.client(), gateway.services.store
    full, other = client.containers.create(name="full").id, client.containers.create(name="other").id
    store.change(ContainerRecord, full, bytes=3 * MIB)

    def room() -> int:
        (row,) = store.find(ContainerRecord, id=other)
        return gateway.services.containers._sandbox(row).options.limits.max_work_dir_bytes

    assert room() == 2 * MIB
    store.change(ContainerRecord, full, bytes=30 * MIB, status="deleting")  # its files are there until it is done
    assert room() == MIB
    store.change(ContainerRecord, full, status="expired")
    assert room() == 4 * MIB


def test_where_the_disk_is_nearly_full_nothing_more_is_taken_and_what_is_not_kept_goes_on(
    new_gateway: NewGateway,
) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    client = gateway.client()
    container = client.containers.create(name="a")
    nearly_full(gateway, left=-1)
    for use in (
        lambda: upload(client, 10),
        lambda: client.containers.create(name="b"),
        lambda: client.containers.files.create(container.id, file=("b", b"b")),
        lambda: client.responses.create(model="m", input="Go.", background=True),
        lambda: client.responses.create(model="m", input="Go.", tools=[CODE_TOOL]),
    ):
        assert refused(use)[:2] == (507, "insufficient_storage")
    assert client.responses.create(model="m", input="Go.", store=False).status == "completed"
    text = client.responses.create(model="m", input="Go.", store=True)
    assert (text.status, text.output_text, text.store) == ("completed", "Ok.", False)
    with client.responses.stream(model="m", input="Go.") as events:
        last = events.get_final_response()
    assert (last.status, last.store) == ("completed", False)
    nearly_full(gateway, left=100)
    upload(client, 100)
    assert refused(lambda: upload(client, 101))[0] == 507
    assert len(list(client.files.list())) == 1


def test_uploads_at_the_same_time_share_what_is_left(work_dir: Path) -> None:
    shares = Shares(GatewayConfig("http://u", data_dir=work_dir), Store("sqlite://"))
    with shares.arriving("me", 100) as one, shares.arriving("me", 100) as other, shares.arriving("you", 100) as yours:
        one(60)
        other(40)
        yours(100)
        with pytest.raises(StorageFull, match="files"):
            one(1)
    with shares.arriving("me", 100) as again:
        again(100)
