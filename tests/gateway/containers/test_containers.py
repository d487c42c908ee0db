"""Containers: made, shared, parked, expired."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import ContainerCreateResponse, ContainerRetrieveResponse

from agent_tools.containers.failures import ContainerExpired, ContainerNotFound
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.services import Services
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply
from tests.gateway.asking import CODE_TOOL, EXECUTE, INCLUDE, Clock, code, in_container, outputs, post, stream, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.strict import check


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_the_sandbox_starts_while_the_model_still_writes_its_code(new_gateway: NewGateway, path: str) -> None:
    is_response, written = path == "responses", threading.Event()
    call = ScriptedCall("python" if is_response else "execute_python", {"code": "print(6 * 7)"})
    gateway = new_gateway({"m": [ScriptedReply(calls=[call], piece=4, wait_midway=written), "42."]})
    question = {"input": "?"} if is_response else {"messages": [{"role": "user", "content": "?"}]}
    body = {"model": "m", "tools": [CODE_TOOL if is_response else EXECUTE], **question}
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(httpx.post, f"{gateway.url}/v1/{path}", json=body, timeout=60)
        until(gateway.services.containers.running)
        written.set()
        assert "42." in answer.result().text
    assert "42" in gateway.upstream.requests[1]["messages"][-1]["content"]


def test_a_container_that_is_deleted_while_it_starts_leaves_no_sandbox(new_gateway: NewGateway) -> None:
    containers = new_gateway({}).services.containers
    for _ in range(5):
        id_ = containers.create("me", ContainerSpec("short")).id
        with containers.acquire(id_) as (sandbox, _):
            containers.slots.start(id_, sandbox)
            containers.delete("me", id_)
    containers.close()
    assert containers.runtime.engine.processes == {}  # type: ignore[attr-defined]


def get(gateway: Gateway, path: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{gateway.url}/v1{path}").json()
    return found


def test_a_container_is_named_by_its_id(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("x = 1"), "Ok.", code("x"), "Ok."]})
    id_ = gateway.client().containers.create(name="mine").id
    (first,) = outputs(post(gateway, tools=in_container(id_)).json())
    (second,) = outputs(post(gateway, tools=in_container(id_), include=INCLUDE).json())
    assert first["container_id"] == second["container_id"] == id_
    assert second["outputs"] == [{"type": "logs", "logs": "1"}]
    unknown = post(gateway, tools=in_container("cntr_none"))
    assert unknown.status_code == 404
    gateway.services.store.change(ContainerRecord, id_, last_active_at=0)
    expired = post(gateway, tools=in_container(id_))
    assert (expired.status_code, expired.json()["error"]["message"]) == (400, "Container is expired.")


def test_containers_are_made_listed_and_deleted(new_gateway: NewGateway) -> None:
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
    with pytest.raises(openai.BadRequestError, match="Nothing in this list has the id"):  # no page of it, not its end
        client.containers.list(after=made[0].id)
    with pytest.raises(openai.NotFoundError):
        client.containers.retrieve(made[0].id)
    assert not (gateway.services.config.data_dir / "containers" / made[0].id).exists()
    with pytest.raises(openai.BadRequestError):
        client.containers.create(name="")


def test_memory_and_network_are_what_the_operator_gives(new_gateway: NewGateway) -> None:
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


def test_an_unused_container_expires_and_use_keeps_it(process_runtime: Runtime, work_dir: Path) -> None:
    services, clock = Services(GatewayConfig("http://u", data_dir=work_dir / "d", pool=0), process_runtime), Clock()
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


def test_of_an_expired_container_only_its_description_is_left(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [code("open('a', 'w').write('a')"), "Ok."]})
    id_ = outputs(post(gateway).json())[0]["container_id"]
    (file,) = gateway.client().containers.files.list(id_)
    gateway.services.store.change(ContainerRecord, id_, last_active_at=0)
    assert get(gateway, f"/containers/{id_}")["status"] == "expired"
    assert [each["status"] for each in get(gateway, "/containers")["data"]] == ["expired"]
    for path in ("files", f"files/{file.id}", f"files/{file.id}/content"):
        answer = httpx.get(f"{gateway.url}/v1/containers/{id_}/{path}")
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "Container is expired.")
    assert gateway.services.containers.running() == {}


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
