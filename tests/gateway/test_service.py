"""Several gateways on one database: any serves what is stored, and one has a container while its sandbox lives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.data_dir import folder_id
from agent_tools.gateway.membership import MAX_SILENCE, RECOVERY_SECONDS, GatewayMembership, check_others
from agent_tools.gateway.store.records import GatewayRow
from agent_tools.gateway.store.store import Store, packed
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL, INCLUDE, SLEEP, beside, code, in_container, outputs, post, until
from tests.gateway.conftest import Gateway, NewGateway
from tests.gateway.postgresql import postgresql
from tests.gateway.served import Served, imported_once

__all__ = ["imported_once", "postgresql"]


def obey(request: dict[str, Any]) -> ScriptedReply:
    last = request["messages"][-1]
    return code(last["content"]) if last["role"] == "user" else ScriptedReply(text="Ok.")


def logs(answer: dict[str, Any]) -> str:
    return "".join(each["logs"] for call in outputs(answer) for each in call["outputs"])


# -- who may share ----------------------------------------------------------------------------------------------------


def test_a_database_is_not_shared_without_its_folder(new_gateway: NewGateway, work_dir: Path) -> None:
    gateway = new_gateway({})
    other = work_dir / "another"
    with pytest.raises(InvalidParams, match="Give both the same folder"):
        check_others(gateway.services.store, folder_id(other))
    check_others(gateway.services.store, folder_id(gateway.services.config.data_dir))
    gateway.services.store.change(GatewayRow, gateway.services.membership.id, seen_at=0)
    check_others(gateway.services.store, folder_id(other))  # nobody is there


def test_an_sqlite_file_is_not_shared_between_machines(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    folder = folder_id(work_dir / "data")
    owner = packed({"agent_tools.host": "another-boot/pid:[1]", "agent_tools.owner": "1-1"})
    times = {"created_at": 1.0, "seen_at": 2e10}
    store.add(GatewayRow(id="g", process=owner, folder=folder, address="", **times))
    with pytest.raises(InvalidParams, match="both a PostgreSQL database"):
        check_others(store, folder)
    store.is_file = False
    check_others(store, folder)
    store.close()


def test_a_folder_keeps_its_id_whoever_asks_first(work_dir: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(folder_id, [work_dir / "d"] * 16))
    assert len(ids) == 1
    assert [path.name for path in (work_dir / "d").iterdir()] == ["folder-id"]


def test_a_gateway_that_was_taken_for_gone_comes_back(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    one, two = (GatewayMembership(GatewayConfig("http://u", data_dir=work_dir), store) for _ in range(2))
    one.join()
    two.join()
    one.beat()
    assert one.has_others
    assert two.is_alive(one.id)
    assert not one.is_alive(one.id)
    store.change(GatewayRow, one.id, seen_at=0)
    two.beat()
    assert not two.is_alive(one.id)
    assert not two.has_others
    one.beat()
    two.beat()
    assert two.is_alive(one.id)
    one.leave()
    assert not two.is_alive("nobody")
    two.beat()
    assert not two.is_alive(one.id)
    assert MAX_SILENCE >= 10
    store.close()


# -- files and containers ---------------------------------------------------------------------------------------------


def test_files_of_one_are_those_of_the_other(new_gateway: NewGateway) -> None:
    one = new_gateway({"m": obey})
    two = beside(new_gateway, one)
    upload = one.client().files.create(file=("a.txt", b"abc"), purpose="user_data")
    assert two.client().files.content(upload.id).read() == b"abc"
    tools = [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [upload.id]}}]
    answer = post(two, tools=tools, input="print(open('a.txt').read())", include=INCLUDE).json()
    assert logs(answer) == "abc\n"
    (call,) = outputs(answer)
    (listed,) = one.client().containers.files.list(call["container_id"])
    assert one.client().containers.files.content.retrieve(listed.id, container_id=call["container_id"]).read() == b"abc"


# -- requests that land elsewhere -------------------------------------------------------------------------------------


@pytest.fixture
def pair(new_gateway: NewGateway) -> tuple[Gateway, Gateway]:
    one = new_gateway({"m": obey, "slow": lambda _: code(SLEEP)})
    two = beside(new_gateway, one)
    for each in (one, two):
        each.services.membership.beat()
        assert each.services.membership.has_others
    return one, two


def told_elsewhere(answer: httpx.Response, kind: str, gateway: Gateway) -> bool:
    """Return True if an answer names another gateway and says why."""
    error = answer.json()["error"]
    name = f"{socket.gethostname()}:{gateway.services.config.port}"
    return (answer.status_code, error["code"], name in error["message"]) == (421, kind, True)


def test_what_needs_the_sandbox_of_another_is_told_where_it_is(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    id_ = one.client().containers.create(name="c").id
    first = post(one, tools=in_container(id_), input="x = 1").json()
    chat = {"model": "m", "messages": [{"role": "user", "content": "1"}], "tools": [{"type": "code_interpreter"}]}
    talk = {"headers": {"X-Conversation-Id": "talk"}, "json": chat, "timeout": 60}
    assert httpx.post(f"{one.url}/v1/chat/completions", **talk).status_code == 200
    answers = [
        post(two, tools=in_container(id_), input="x"),
        post(two, tools=in_container(id_), input="x", stream=True),
        post(two, tools=in_container(id_), input="x", background=True),
        post(two, previous_response_id=first["id"], input="x"),
        httpx.delete(f"{two.url}/v1/containers/{id_}"),
        httpx.post(f"{two.url}/v1/chat/completions", **talk),
    ]
    assert [told_elsewhere(each, "container_elsewhere", one) for each in answers] == [True] * len(answers)
    assert two.services.containers.running() == {}
    assert two.client().containers.retrieve(id_).status == "running"
    assert logs(post(one, tools=in_container(id_), input="print(x)", include=INCLUDE).json()) == "1\n"


def test_a_response_under_way_is_told_and_cancelled_where_it_runs(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    id_ = post(one, model="slow", background=True).json()["id"]
    until(lambda: one.services.containers.running())
    url = f"{two.url}/v1/responses/{id_}"
    assert httpx.get(url).json()["status"] == "in_progress"
    answers = [httpx.get(f"{url}?stream=true"), httpx.post(f"{url}/cancel"), httpx.delete(url)]
    assert [told_elsewhere(each, "response_elsewhere", one) for each in answers] == [True] * len(answers)
    assert httpx.post(f"{one.url}/v1/responses/{id_}/cancel", timeout=60).json()["status"] == "cancelled"
    assert httpx.get(url).json()["status"] == "cancelled"
    assert "data: [DONE]" in httpx.get(f"{url}?stream=true").text


# -- as processes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[str]:
    with ScriptedServer({"m": obey}) as server:
        yield server.base_url


def ask(gateway: Served, text: str, **more: Any) -> tuple[str, str]:
    """Run code; return the response's id, and what the code printed."""
    with gateway.client() as client:
        made = client.responses.create(model="m", input=text, tools=[CODE_TOOL], include=INCLUDE, **more)  # type: ignore[list-item]
    return made.id, logs(made.model_dump())


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, postgresql: str, work_dir: Path) -> str:
    (work_dir / "data").mkdir()
    return postgresql if request.param == "postgresql" else f"sqlite:///{work_dir}/data/gateway.db"


def test_two_processes_are_one_service_and_one_outlives_the_other(
    imported_once: None, database: str, upstream: str, work_dir: Path
) -> None:
    settings = {"upstream": upstream, "data_dir": work_dir / "data", "database": database}
    one, two = (Served(**settings) for _ in range(2))
    try:
        one.wait()
        two.wait()
        first, _ = ask(one, "import threading; lock = threading.Lock(); open('kept', 'w').write('k')")
        with pytest.raises(openai.APIStatusError, match="has the container's sandbox"):
            ask(two, "1", previous_response_id=first)
        stranger = Served(**{**settings, "data_dir": work_dir / "another"})
        assert "Give both the same folder" in stranger.last_words
        one.kill()
        last = "print(open('kept').read(), 'lock' in globals())"
        _, told = ask(two, last, previous_response_id=first)
        assert told == "k False\n"
    finally:
        for each in (one, two):
            each.close()


def test_others_are_not_taken_for_gone_after_a_time_in_which_the_database_heard_of_nobody(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    one, other = (GatewayMembership(GatewayConfig("http://u", data_dir=work_dir), store) for _ in range(2))
    one.join()
    other.join()
    store.change(GatewayRow, other.id, seen_at=0)
    one._beat_at -= 2 * MAX_SILENCE  # nor did it hear of this one
    one.beat()
    assert one.is_alive(other.id)
    one._recovers_until -= 2 * RECOVERY_SECONDS
    one.beat()
    assert not one.is_alive(other.id)
    store.close()
