"""Several gateways on one database are one service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.records import ContainerRecord
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.data_dir import folder_id
from agent_tools.gateway.peers import FORWARDED, MAX_SILENCE, PATIENCE, Presence, check_others
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


def with_address(gateway: Gateway) -> Gateway:
    """Let others know where it is; the test's own port is not known before it starts."""
    services = gateway.services
    for config in (services.config, services.peers._config):
        object.__setattr__(config, "address", gateway.url)
        object.__setattr__(config, "shared_secret", "our-secret")
    services.store.change(GatewayRow, services.presence.id, address=gateway.url)
    return gateway


# -- who may share ----------------------------------------------------------------------------------------------------


def test_a_database_is_not_shared_without_its_folder(new_gateway: NewGateway, work_dir: Path) -> None:
    gateway = new_gateway({})
    other = work_dir / "another"
    with pytest.raises(InvalidParams, match="Give both the same folder"):
        check_others(gateway.services.store, folder_id(other))
    check_others(gateway.services.store, folder_id(gateway.services.config.data_dir))
    gateway.services.store.change(GatewayRow, gateway.services.presence.id, seen_at=0)
    check_others(gateway.services.store, folder_id(other))  # nobody is there


def test_an_sqlite_file_is_not_shared_between_machines(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    folder = folder_id(work_dir / "data")
    owner = packed({"agent_tools.host": "another-boot/pid:[1]", "agent_tools.owner": "1-1"})
    times = {"created_at": 1.0, "seen_at": 2e10}
    store.add(GatewayRow(id="g", owner=owner, folder=folder, address="", **times))
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
    one, two = (Presence(GatewayConfig("http://u", data_dir=work_dir), store) for _ in range(2))
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


@pytest.mark.parametrize(
    "options",
    [
        {"address": "http://a:1"},
        {"shared_secret": "long-enough"},
        {"address": "http://a:1", "shared_secret": "short"},
        {"address": "http://a:1", "shared_secret": "two lines\nof it"},
        {"address": "a:1", "shared_secret": "long-enough"},
        {"address": "http://me@a:1", "shared_secret": "long-enough"},
    ],
)
def test_an_address_that_cannot_be_used_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidParams, match="address"):
        GatewayConfig("http://u", **options)


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


def test_a_container_that_is_deleted_at_the_other_leaves_nothing(new_gateway: NewGateway) -> None:
    one = new_gateway({"m": obey})
    two = beside(new_gateway, one)
    id_ = one.client().containers.create(name="c").id
    post(one, tools=in_container(id_), input="open('f', 'w').write('x')")
    assert list(one.services.containers.running()) == [id_]
    until(lambda: one.services.presence.has_others)
    two.client().containers.delete(id_)
    assert one.services.containers.running() == {}
    assert not one.services.containers.folder(id_).exists()
    assert one.services.store.get(ContainerRecord, id_) is None


# -- requests that land elsewhere -------------------------------------------------------------------------------------


@pytest.fixture
def pair(new_gateway: NewGateway) -> tuple[Gateway, Gateway]:
    one = with_address(new_gateway({"m": obey, "slow": lambda _: code(SLEEP)}))
    two = with_address(beside(new_gateway, one))
    for each in (one, two):
        each.services.presence.beat()
        assert each.services.peers.are_there
    return one, two


LIVE = "import threading; lock = threading.Lock()"
TYPE = "print(type(lock).__name__)"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_is_answered_where_the_variables_are(pair: tuple[Gateway, Gateway], is_stream: bool) -> None:
    one, two = pair
    first = post(one, input=LIVE).json()
    answer = post(two, previous_response_id=first["id"], input=TYPE, include=INCLUDE, stream=is_stream)
    assert answer.status_code == 200
    assert "lock" in answer.text
    assert '"logs":"lock\\n"' in answer.text.replace(" ", "")
    assert answer.headers["content-type"].startswith("text/event-stream" if is_stream else "application/json")
    assert len(answer.headers.get_list("x-request-id")) == 1
    assert two.services.containers.running() == {}
    assert "agent_tools_forwarded_total 1.0" in httpx.get(f"{two.url}/metrics").text


@pytest.mark.parametrize("by", ["previous_response_id", "id"])
def test_who_is_sent_on_needs_no_place_here(new_gateway: NewGateway, by: str) -> None:
    one = with_address(new_gateway({"m": obey, "slow": lambda _: code(SLEEP)}))
    two = with_address(beside(new_gateway, one, max_sandboxes=1, queue_timeout=0.2))
    two.services.presence.beat()
    id_ = one.client().containers.create(name="c").id
    first = post(one, tools=in_container(id_), input=LIVE).json()
    slow = post(two, model="slow", background=True).json()["id"]
    assert post(two, input="1").status_code == 503  # the only place is taken
    more = {"tools": in_container(id_)} if by == "id" else {"previous_response_id": first["id"]}
    answer = post(two, input=TYPE, include=INCLUDE, **more)
    assert (answer.status_code, logs(answer.json())) == (200, "lock\n")
    assert id_ not in two.services.containers.running()
    httpx.post(f"{two.url}/v1/responses/{slow}/cancel", timeout=60)


def test_a_container_by_its_id_and_a_chat_are_found_at_the_other(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    id_ = one.client().containers.create(name="c").id
    post(one, tools=in_container(id_), input=LIVE)
    assert logs(post(two, tools=in_container(id_), input=TYPE, include=INCLUDE).json()) == "lock\n"
    headers = {"X-Conversation-Id": "talk"}
    for gateway, text in ((one, LIVE), (two, TYPE)):
        asked = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": [{"type": "code_interpreter"}]}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=asked, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
    assert two.services.containers.running() == {}
    assert "lock" in json.dumps(one.upstream.requests[-1]["messages"])  # type: ignore[attr-defined]


def test_one_under_way_is_cancelled_and_resumed_at_the_other(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    id_ = post(one, model="slow", background=True).json()["id"]
    until(lambda: one.services.containers.running())
    with httpx.stream("GET", f"{two.url}/v1/responses/{id_}?stream=true", timeout=60) as resumed:
        lines = resumed.iter_lines()
        assert next(lines) == "event: response.created"
        answer = httpx.post(f"{two.url}/v1/responses/{id_}/cancel", timeout=60)
        assert answer.json()["status"] == "cancelled"
        assert "data: [DONE]" in list(lines)


def test_one_that_cannot_be_reached_is_asked_for_the_container_instead(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    first = post(one, input="x = 1").json()
    one.services.store.change(GatewayRow, one.services.presence.id, address="http://127.0.0.1:9")
    two.services.presence.beat()
    answer = post(two, previous_response_id=first["id"], input="print(x)", include=INCLUDE).json()
    assert logs(answer) == "1\n"
    assert list(two.services.containers.running())
    assert "agent_tools_handed_over_total 1.0" in httpx.get(f"{one.url}/metrics").text


def test_a_request_is_sent_on_once_and_by_those_who_know_the_secret(pair: tuple[Gateway, Gateway]) -> None:
    one, two = pair
    id_ = one.client().containers.create(name="c").id
    post(one, tools=in_container(id_), input="x = 1")
    body = {"model": "m", "input": "print(x)", "tools": in_container(id_), "include": INCLUDE}
    answer = httpx.post(f"{two.url}/v1/responses", json=body, headers={FORWARDED: "our-secret"}, timeout=60)
    assert logs(answer.json()) == "1\n"
    assert list(two.services.containers.running()) == [id_]  # it was handed over
    for secret in ("", "another", "\xff"):
        answer = httpx.get(f"{two.url}/v1/containers", headers={FORWARDED: secret.encode("latin-1")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_shared_secret")


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
        first, _ = ask(one, f"{LIVE}; open('kept', 'w').write('k')")
        second, told = ask(two, TYPE, previous_response_id=first)
        assert told == "lock\n"
        stranger = Served(**{**settings, "data_dir": work_dir / "another"})
        assert "Give both the same folder" in stranger.last_words
        one.kill()
        last = "print(open('kept').read(), 'lock' in globals())"
        _, told = ask(two, last, previous_response_id=second)
        assert told == "k False\n"
    finally:
        for each in (one, two):
            each.close()


def test_others_are_not_taken_for_gone_after_a_time_in_which_the_database_heard_of_nobody(work_dir: Path) -> None:
    store = Store(f"sqlite:///{work_dir}/s.db")
    one, other = (Presence(GatewayConfig("http://u", data_dir=work_dir), store) for _ in range(2))
    one.join()
    other.join()
    store.change(GatewayRow, other.id, seen_at=0)
    one._beat_at -= 2 * MAX_SILENCE  # nor did it hear of this one
    one.beat()
    assert one.is_alive(other.id)
    one._patient_until -= 2 * PATIENCE
    one.beat()
    assert not one.is_alive(other.id)
    store.close()
