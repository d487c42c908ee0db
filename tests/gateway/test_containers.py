"""Containers and files: made, filled, read, shared, parked, expired."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import ContainerCreateResponse, ContainerRetrieveResponse, FileObject
from openai.types.containers import FileCreateResponse

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.containers.containers import ContainerSpec
from agent_tools.gateway.containers.failures import ContainerExpired, ContainerNotFound
from agent_tools.gateway.services import Services
from agent_tools.gateway.store.records import Container, StoredEvents, StoredResponse, Upload
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check
from tests.gateway.test_lifecycle import is_idle, until
from tests.gateway.test_responses import INCLUDE, code, outputs, post, stream

DRAW = (
    "import base64\nfrom IPython.display import Image, display\n"
    "display(Image(data=base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=='), format='png'))"
)


def in_container(id_: str) -> list[dict[str, Any]]:
    return [{"type": "code_interpreter", "container": id_}]


def get(gateway: Gateway, path: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{gateway.url}/v1{path}").json()
    return found


def test_09_a_container_is_named_by_its_id(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), "Ok.", code("x"), "Ok."]})
    id_ = gateway.client().containers.create(name="mine").id
    (first,) = outputs(post(gateway, tools=in_container(id_)).json())
    (second,) = outputs(post(gateway, tools=in_container(id_), include=INCLUDE).json())
    assert first["container_id"] == second["container_id"] == id_
    assert second["outputs"] == [{"type": "logs", "logs": "1"}]
    unknown = post(gateway, tools=in_container("cntr_none"))
    assert unknown.status_code == 404
    gateway.services.store.change(Container, id_, last_active_at=0)
    expired = post(gateway, tools=in_container(id_))
    assert (expired.status_code, expired.json()["error"]["message"]) == (400, "Container is expired.")


def test_24_a_file_that_code_wrote_is_cited_and_can_be_had(new_gateway: NewGateway) -> None:
    link = (
        "Here: [data](sandbox:/mnt/data/data.csv), not [that](sandbox:/mnt/data/none.csv) nor sandbox:/mnt/data/../x."
    )
    gateway = new_gateway({"m": [code("open('data.csv', 'w').write('a,b')"), ScriptedReply(text=link, piece=9)]})
    events = stream(gateway)
    kinds = [event["type"] for event in events]
    assert kinds.index("response.output_text.annotation.added") < kinds.index("response.output_text.done")
    message = events[-1]["response"]["output"][-1]["content"][0]
    (citation,) = message["annotations"]
    assert message["text"][citation["start_index"] : citation["end_index"]] == "sandbox:/mnt/data/data.csv"
    content = gateway.client().containers.files.content.retrieve(
        citation["file_id"], container_id=citation["container_id"]
    )
    assert content.read() == b"a,b"
    assert "/mnt/data/data.csv (3 bytes)" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_24_a_name_takes_one_line_of_what_a_model_is_told(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("open('a\\nb (9 bytes)', 'w').close()"), "Ok."]})
    stream(gateway)
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert told.endswith("files written:\n\n```\n/mnt/data/a\\nb (9 bytes) (0 bytes)\n```")


def test_24_links_in_a_container_lead_nowhere(new_gateway: NewGateway) -> None:
    make = (
        "import os; os.symlink('/etc/hosts', 'file'); os.symlink('/etc', 'folder'); os.mkfifo('pipe'); os.mkdir('sub')"
    )
    said = "sandbox:/mnt/data/file sandbox:/mnt/data/folder/hosts sandbox:/mnt/data/pipe sandbox:/mnt/data/sub"
    gateway = new_gateway({"m": [code(make), ScriptedReply(text=said)]})
    call, message = stream(gateway)[-1]["response"]["output"]
    assert message["content"][0]["annotations"] == []
    assert list(gateway.client().containers.files.list(call["container_id"])) == []


def test_24_a_figure_is_an_image(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code(DRAW), "Ok."]})
    (call,) = outputs(stream(gateway, include=INCLUDE)[-1]["response"])
    (image,) = call["outputs"]
    assert image["type"] == "image"
    assert image["url"].startswith("data:image/png;base64,iVBOR")
    told = gateway.upstream.requests[1]["messages"][-1]["content"]
    assert "sandbox:/mnt/data/" in told
    by_url = new_gateway({"m": [code(DRAW), "Ok."]}, image_urls="content")
    (call,) = outputs(post(by_url, include=INCLUDE).json())
    assert httpx.get(by_url.url + call["outputs"][0]["url"]).content.startswith(b"\x89PNG")


def test_25_containers_are_made_listed_and_deleted(new_gateway: NewGateway) -> None:
    gateway = new_gateway({})
    client = gateway.client()
    after: Any = {"anchor": "last_active_at", "minutes": 5}
    made = [client.containers.create(name=f"c{n}", expires_after=after) for n in range(5)]
    check(ContainerCreateResponse, made[0].to_dict())
    check(ContainerRetrieveResponse, get(gateway, f"/containers/{made[0].id}"))
    assert made[0].expires_after is not None
    assert made[0].expires_after.minutes == 5
    assert [each.id for each in client.containers.list(limit=2)] == [each.id for each in reversed(made)]
    assert [each.id for each in client.containers.list(limit=2, order="asc")] == [each.id for each in made]
    assert get(gateway, "/containers?limit=2")["has_more"] is True
    assert httpx.get(f"{gateway.url}/v1/containers?limit=0").status_code == 400
    client.containers.delete(made[0].id)
    with pytest.raises(openai.NotFoundError):
        client.containers.retrieve(made[0].id)
    assert not (gateway.services.config.data_dir / "containers" / made[0].id).exists()
    with pytest.raises(openai.BadRequestError):
        client.containers.create(name="")


def test_25_files_come_by_upload_and_by_id(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(open('b.txt').read(), open('/'.join(['.', 'a.txt'])).read())"), "Ok."]})
    client = gateway.client()
    container = client.containers.create(name="files")
    sent = client.containers.files.create(container.id, file=("../../a.txt", b"sent"))
    check(FileCreateResponse, sent.to_dict())
    assert (sent.path, sent.bytes, sent.source) == ("/mnt/data/a.txt", 4, "user")
    upload = client.files.create(file=("b.txt", b"uploaded"), purpose="user_data")
    check(FileObject, upload.to_dict())
    assert client.files.content(upload.id).read() == b"uploaded"
    copied = client.containers.files.create(container.id, file_id=upload.id)
    assert {each.id for each in client.containers.files.list(container.id)} == {sent.id, copied.id}
    (call,) = outputs(post(gateway, tools=in_container(container.id), include=INCLUDE).json())
    assert call["outputs"] == [{"type": "logs", "logs": "uploaded sent\n"}]
    client.containers.files.delete(sent.id, container_id=container.id)
    with pytest.raises(openai.NotFoundError):
        client.containers.files.retrieve(sent.id, container_id=container.id)
    client.files.delete(upload.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(upload.id)


def test_25_a_new_container_gets_the_files_that_are_named(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("print(open('b.txt').read())"), "Ok."]})
    upload = gateway.client().files.create(file=("b.txt", b"uploaded"), purpose="user_data")
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [upload.id]}}]
    body = stream(gateway, tools=tools, include=INCLUDE)[-1]["response"]
    assert outputs(body)[0]["outputs"] == [{"type": "logs", "logs": "uploaded\n"}]
    assert body["tools"] == tools
    tools[0]["container"]["file_ids"] = ["file_none"]  # type: ignore[index]
    assert post(gateway, tools=tools).status_code == 404


def test_25_too_large_a_file_is_refused_and_leaves_nothing(new_gateway: NewGateway) -> None:
    gateway = new_gateway({}, max_upload_bytes=100)
    with pytest.raises(openai.APIStatusError) as refused:
        gateway.client().files.create(file=("b.txt", io.BytesIO(b"x" * 101)), purpose="user_data")
    assert refused.value.status_code == 413
    assert list((gateway.services.config.data_dir / "uploads").iterdir()) == []


def test_26_memory_and_network_are_what_the_operator_gives(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("1"), "Ok."]}, max_memory="4g")
    client = gateway.client()
    assert client.containers.create(name="a").memory_limit == "1g"
    assert client.containers.create(name="b", memory_limit="4g").memory_limit == "4g"
    for wrong in (
        {"memory_limit": "64g"},
        {"network_policy": {"type": "allowlist", "allowed_domains": ["example.org"]}},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.containers.create(name="c", **wrong)  # type: ignore[arg-type]
        assert refused.value.param == next(iter(wrong))
        tools = [{"type": "code_interpreter", "container": {"type": "auto", **wrong}}]
        answer = post(gateway, tools=tools)
        param = f"tools[0].container.{next(iter(wrong))}"
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    disabled = [{"type": "code_interpreter", "container": {"type": "auto", "network_policy": {"type": "disabled"}}}]
    assert stream(gateway, tools=disabled)[-1]["response"]["tools"] == disabled


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_27_an_unused_container_expires_and_use_keeps_it(process_runtime: Runtime, work_dir: Path) -> None:
    services, clock = Services(GatewayConfig("http://u", data_dir=work_dir / "d"), process_runtime), Clock()
    services.containers.clock = clock
    try:
        row = services.containers.create("me", ContainerSpec("a", idle_minutes=10))
        folder = services.containers.folder(row.id)
        (folder / "x.txt").write_text("x")
        clock.now += 500
        services.containers.active("me", row.id)
        clock.now += 500
        services.sweep()
        assert services.containers.active("me", row.id).status == "active"
        clock.now += 601
        services.sweep()
        assert not folder.exists()
        assert services.containers.find("me", row.id).status == "expired"
        with pytest.raises(ContainerExpired, match="Container is expired"):
            services.containers.active("me", row.id)
        clock.now += services.config.retention
        services.sweep()
        with pytest.raises(ContainerNotFound, match="No container"):
            services.containers.find("me", row.id)
    finally:
        services.close()


def test_27_of_an_expired_container_only_its_description_is_left(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("open('a', 'w').write('a')"), "Ok."]})
    id_ = outputs(post(gateway).json())[0]["container_id"]
    (file,) = gateway.client().containers.files.list(id_)
    gateway.services.store.change(Container, id_, last_active_at=0)
    assert get(gateway, f"/containers/{id_}")["status"] == "expired"
    assert [each["status"] for each in get(gateway, "/containers")["data"]] == ["expired"]
    for path in ("files", f"files/{file.id}", f"files/{file.id}/content"):
        answer = httpx.get(f"{gateway.url}/v1/containers/{id_}/{path}")
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Container is expired.")
    assert gateway.services.containers.running() == {}


def test_what_is_older_than_it_may_be_is_forgotten(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    upload = gateway.client().files.create(file=("a", b"a"), purpose="user_data")
    ids = [post(gateway, tools=[], background=is_background).json()["id"] for is_background in (True, False) * 2]
    until(lambda: is_idle(gateway))
    for table, id_ in ((StoredResponse, ids[0]), (StoredResponse, ids[1]), (StoredEvents, ids[0])):
        gateway.services.store.change(table, id_, created_at=0)
    gateway.services.store.change(Upload, upload.id, created_at=0)
    gateway.services.sweep()
    assert {row.id for row in gateway.services.store.find(StoredResponse)} == set(ids[2:])
    assert [row.id for row in gateway.services.store.find(StoredEvents)] == [ids[2]]
    assert list((gateway.services.config.data_dir / "uploads").iterdir()) == []


def test_the_longest_unused_sandbox_makes_room_and_its_files_stay(new_gateway: NewGateway) -> None:
    def obey(request: dict[str, Any]) -> ScriptedReply:
        last = request["messages"][-1]
        return code(last["content"]) if last["role"] == "user" else ScriptedReply(text="Ok.")

    gateway = new_gateway({"m": obey}, max_sandboxes=1)
    first, second = (gateway.client().containers.create(name=name).id for name in "ab")
    post(gateway, tools=in_container(first), input="x = 1; open('kept', 'w').write('k')")
    post(gateway, tools=in_container(second), input="x = 2")
    assert gateway.services.containers.running() == {second: False}
    look = "print(open('kept').read()); x"
    (call,) = outputs(post(gateway, tools=in_container(first), input=look, include=INCLUDE).json())
    assert "NameError" in call["outputs"][-1]["logs"]
    assert call["outputs"][0]["logs"].startswith("k")
    assert "variables are lost" in json.dumps(gateway.upstream.requests[-1]["messages"])


def test_a_dead_container_in_history_gives_a_new_one_and_a_note(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), "Ok.", code("x"), "Ok."]})
    first = post(gateway).json()
    gateway.client().containers.delete(outputs(first)[0]["container_id"])
    second = post(gateway, previous_response_id=first["id"]).json()
    assert outputs(second)[0]["container_id"] != outputs(first)[0]["container_id"]
    assert "is gone" in gateway.upstream.requests[2]["messages"][0]["content"]


def test_there_are_only_so_many_containers(new_gateway: NewGateway) -> None:
    client = new_gateway({}, max_containers=1).client()
    client.containers.create(name="a")
    with pytest.raises(openai.RateLimitError):
        client.containers.create(name="b")


def test_a_container_takes_no_more_than_it_may(new_gateway: NewGateway) -> None:
    client = new_gateway({}, max_container_bytes=50_000).client()
    container = client.containers.create(name="a")
    client.containers.files.create(container.id, file=("a.bin", b"a" * 40_000))
    with pytest.raises(openai.APIStatusError) as refused:
        client.containers.files.create(container.id, file=("b.bin", b"b" * 40_000))
    assert refused.value.status_code == 413
    assert len(list(client.containers.files.list(container.id))) == 1
