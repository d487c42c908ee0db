"""JSON of clients and of the store: how much of it is taken, who reads it, and what it costs."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.sse import PART, EventStream
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.requests.fields import scrubbed
from agent_tools.gateway.requests.large_json import LARGE, LargeJson
from agent_tools.gateway.responses.stored_items import resolved
from agent_tools.gateway.store.records import Record, ResponseInput, StoredItem, StoredResponse
from agent_tools.gateway.store.store import Store
from agent_tools.marks import has_more_parts
from agent_tools.runtime.runtime import Runtime
from agent_tools.settings import MIB
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.conftest import NewGateway
from tests.gateway.in_loop import LargeJsonHere, serving, until_true
from tests.gateway.test_responses import post

LONG = "long, but harmless. " * (LARGE // 16)


@pytest.mark.parametrize("part", ["[],", "{},", '{"":0},', "0,"])
def test_a_body_of_many_parts_is_refused_before_they_cost_memory(new_gateway: NewGateway, part: str) -> None:
    gateway = new_gateway({})
    body = ('{"model":"m","input":[' + part * (2 * MIB // len(part)) + "0]}").encode()
    tracemalloc.start()
    try:
        answer = httpx.post(f"{gateway.url}/v1/responses", content=body, timeout=60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_parts")
    assert "POST /v1/files" in answer.json()["error"]["message"]
    assert peak < 8 * len(body)


def test_how_many_parts_a_body_may_have_is_a_setting(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")}, max_body_parts=1000)
    assert post(gateway, tools=[], metadata={"a": "b" * 5000}).status_code == 200
    assert post(gateway, tools=[], metadata={"a": [0] * 1000}).status_code == 413


def test_parts_are_counted_up_to_one_too_many() -> None:
    assert not has_more_parts(b"[0,0,0]", 3)
    assert has_more_parts(b"[0,0,0]", 2)
    assert not has_more_parts(b'{"a": [' + b" " * 3 * MIB + b"1,2]}", 3)
    assert has_more_parts(b'{"a": [' + b" " * 3 * MIB + b"1,2]}", 2)


async def _use_all_routes(config: GatewayConfig, runtime: Runtime) -> tuple[list[int], list[tuple[str, int]]]:
    """The status of each answer, and the large JSON of this thread; the test's own is read and written in others."""
    answers: list[httpx.Response] = []

    async def ask(method: str, path: str, body: Any = None, **query: str) -> Any:
        content = await asyncio.to_thread(json.dumps, body)
        answers.append(await client.request(method, path, content=content, params=query))
        return None if query else await asyncio.to_thread(answers[-1].json)

    async with serving(config, runtime) as (client, _):
        with LargeJsonHere() as found:
            one = f"/v1/responses/{(await ask('POST', '/v1/responses', {'model': 'm', 'input': LONG}))['id']}"
            await ask("GET", one)
            await ask("GET", one, **{"include[]": "reasoning.encrypted_content"})
            await ask("GET", f"{one}/input_items")
            await ask("DELETE", one)
            asked = {"model": "m", "input": LONG, "background": True, "instructions": LONG}
            two = f"/v1/responses/{(await ask('POST', '/v1/responses', asked))['id']}"
            await ask("GET", two, stream="true")
            await ask("POST", f"{two}/cancel")
            await ask("GET", two, stream="true")
            tool = {"type": "function", "function": {"name": "execute_python", "parameters": {"type": "object"}}}
            for tools in ([], [tool]):
                said = [{"role": "user", "content": LONG}]
                await ask("POST", "/v1/chat/completions", {"model": "m", "messages": said, "tools": tools})
    return [answer.status_code for answer in answers], found.sizes


def test_no_large_json_is_parsed_or_written_in_the_event_loop(process_runtime: Runtime, work_dir: Path) -> None:
    with ScriptedServer({"m": lambda _: ScriptedReply(text=LONG, piece=50_000)}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d")
        codes, large = asyncio.run(_use_all_routes(config, process_runtime))
    assert codes == [200] * 11
    assert large == []


async def _beside_large_ones(config: GatewayConfig, runtime: Runtime) -> None:
    async with serving(config, runtime) as (client, app):
        places = app.state.services.large_json.places
        for _ in range(config.json_threads):
            await places.acquire()
        large = asyncio.ensure_future(client.post("/v1/responses", json={"model": "m", "input": LONG}))
        small = await client.post("/v1/responses", json={"model": "m", "input": "Hi."})
        await until_true(lambda: places._waiters)
        assert (small.status_code, large.done()) == (200, False)
        places.release()
        assert (await large).status_code == 200


def test_large_bodies_wait_for_each_other_and_small_ones_for_none(process_runtime: Runtime, work_dir: Path) -> None:
    with ScriptedServer({"m": lambda _: ScriptedReply(text="Ok.")}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", json_threads=1)
        asyncio.run(_beside_large_ones(config, process_runtime))


def test_so_many_large_pieces_are_read_at_once() -> None:
    async def ten() -> int:
        large, under_way, most = LargeJson(3), [0], [0]

        def work(loop: asyncio.AbstractEventLoop) -> None:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()
            under_way[0] -= 1

        loop = asyncio.get_running_loop()
        await asyncio.gather(*(large.read(LARGE + 1, work, loop) for _ in range(10)))
        return most[0]

    assert asyncio.run(ten()) == 3


def test_what_is_kept_is_answered_as_it_is_kept(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    made = post(gateway, tools=[])
    one = f"{gateway.url}/v1/responses/{made.json()['id']}"
    assert httpx.get(one).content == made.content
    gateway.services.store.change(StoredResponse, made.json()["id"], body="not even JSON")
    assert httpx.get(one).text == "not even JSON"
    assert httpx.get(one).headers["content-type"] == "application/json"


def test_of_the_input_only_what_a_page_shows_is_read(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": ["Ok."]})
    said = [{"id": f"msg_{n}", "role": "user", "content": str(n)} for n in range(30)]
    id_ = post(gateway, tools=[], input=said).json()["id"]
    kept = gateway.services.store.find(ResponseInput, id=id_)[0].input.split("\n")
    kept[2:] = [line[:16] + " not JSON" for line in kept[2:]]
    gateway.services.store.change(StoredResponse, id_, input="\n".join(kept))
    items = f"{gateway.url}/v1/responses/{id_}/input_items"
    page = httpx.get(items, params={"order": "asc", "limit": 2}).json()
    assert [item["id"] for item in page["data"]] == ["msg_0", "msg_1"]
    assert page["has_more"]
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "0"}]
    assert [item["id"] for item in httpx.get(items, params={"after": "msg_1"}).json()["data"]] == ["msg_0"]


def test_halves_of_characters_are_replaced_in_place_however_deep() -> None:
    deep: Any = ["\ud800"]
    for _ in range(100_000):
        deep = [deep]
    inner = scrubbed(deep)
    assert inner is deep
    while isinstance(inner[0], list):
        inner = inner[0]
    assert inner == ["?"]
    assert scrubbed({"a\ud800": {"b": "é\udfff"}, "c": 1}) == {"a?": {"b": "é?"}, "c": 1}
    assert scrubbed("\ud800") == "?"
    while deep and isinstance(deep[0], list):  # taken apart from outside: freeing it at once would go as deep
        deep = deep.pop()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "utf-8-sig"])
def test_halves_of_characters_are_found_in_every_encoding(new_gateway: NewGateway, encoding: str) -> None:
    gateway = new_gateway({"m": ["Ok.", "Ok."]})
    for text in ('"\\ud800 é"', '"\ud800 é"'):
        body = f'{{"model": "m", "input": {text}}}'.encode(encoding, "surrogatepass")
        assert httpx.post(f"{gateway.url}/v1/responses", content=body).status_code == 200
    assert [asked["messages"][-1]["content"] for asked in gateway.upstream.requests] == ["? é"] * 2


_Kind = TypeVar("_Kind", bound=Record)


class CountingStore(Store):
    """Counts how often a response's row is read."""

    reads = 0

    def find(self, kind: type[_Kind], **where: Any) -> list[_Kind]:
        self.reads += kind.table.name == "responses"
        return super().find(kind, **where)


def test_a_response_whose_items_are_named_is_read_once_and_within_bounds(work_dir: Path) -> None:
    store = CountingStore(f"sqlite:///{work_dir}/s.db")
    ids = [f"msg_{n}" for n in range(100)]
    body = json.dumps({"output": [{"id": id_, "type": "message"} for id_ in ids]})
    response = StoredResponse(
        id="resp_1",
        owner="me",
        created_at=1.0,
        status="completed",
        background=False,
        bytes=1,
        container_id=None,
        body=body,
        input="",
        conversation="[]",
    )
    store.add(response, *(StoredItem(id=id_, owner="me", created_at=1.0, response_id="resp_1") for id_ in ids))
    named = [{"type": "item_reference", "id": id_} for id_ in ids]
    assert [item["id"] for item in resolved(store, "me", named, len(body))] == ids
    assert store.reads == 1
    with pytest.raises(ApiError) as refused:
        resolved(store, "me", named, len(body) - 1)
    assert refused.value.status == 413
    store.close()


def test_a_large_event_is_sent_in_parts() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def stream() -> None:
        log = EventLog(100 * PART)
        log.append({"type": "large", "text": "x" * 10 * PART})
        log.append({"type": "small"})
        log.close()
        await EventStream(log, lambda: None)({}, receive, send)

    asyncio.run(stream())
    assert max(map(len, sent)) <= 2 * PART
    lines = b"".join(sent).decode().split("\n\n")
    assert [line.split("\n")[0] for line in lines[:2]] == ["event: large", "event: small"]
    assert len(json.loads(lines[0].split("data: ")[1])["text"]) == 10 * PART
