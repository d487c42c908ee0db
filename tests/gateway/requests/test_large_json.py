"""Large JSON of clients: how much of it is taken, who reads it, and what it costs."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.bodies.json_body import AT_ONCE, LARGE, MAX_ESCAPES, MAX_PARTS, BodyRefused, parsed, places, sized
from agent_tools.containers.keys import ANYONE
from agent_tools.gateway.anthropic.request import read_messages_request
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.responses.request import read_request
from agent_tools.json_parts import has_more_parts
from agent_tools.limits import MIB
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.asking import KEYS
from tests.gateway.conftest import NewGateway
from tests.gateway.in_loop import LargeJsonHere, SocketHere, serving, until_true

SOCKETS = {"type": "response.create", "model": "m", "store": False}
LONG = "long, but harmless. " * (LARGE // 16)


@pytest.mark.parametrize("part", ["[],", "{},", '{"":0},', "0,"])
@pytest.mark.parametrize("path", ["responses", "messages", "messages/count_tokens"])
def test_a_body_of_many_parts_is_refused_before_they_cost_memory(new_gateway: NewGateway, path: str, part: str) -> None:
    gateway = new_gateway({})
    body = ('{"model":"code_execution","input":[' + part * (2 * MIB // len(part)) + "0]}").encode()
    tracemalloc.start()
    try:
        answer = httpx.post(f"{gateway.url}/v1/{path}", content=body, timeout=60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status_code == 413
    assert (
        "commas and opening brackets. Send large data as a file (POST /v1/files)." in answer.json()["error"]["message"]
    )
    assert peak < 8 * len(body)


def test_parts_are_counted_up_to_one_too_many() -> None:
    assert not has_more_parts(b"[0,0,0]", 3)
    assert has_more_parts(b"[0,0,0]", 2)
    assert not has_more_parts(b'{"a": [' + b" " * 3 * MIB + b"1,2]}", 3)
    assert has_more_parts(b'{"a": [' + b" " * 3 * MIB + b"1,2]}", 2)


def test_texts_have_as_many_commas_as_they_like() -> None:
    for text in ('"a,[{"', r'"\",[\\"', r'"\\\",,,,"', '""'):
        body = f"[{text},0,{text}]".encode()
        assert json.loads(body)
        assert not has_more_parts(body, 3, beside_texts=True)
        assert has_more_parts(body, 2, beside_texts=True)
    assert has_more_parts(b'"' * 100 + b",,,,", 3, beside_texts=True)
    assert parsed(json.dumps({"text": "," * MAX_PARTS * 2}).encode())
    with pytest.raises(BodyRefused):
        parsed(json.dumps("," * MAX_PARTS * 2).encode("utf-16"))


def test_texts_have_a_bounded_number_of_escapes() -> None:
    assert parsed(b'"' + b"\\n" * MAX_ESCAPES + b'"') == "\n" * MAX_ESCAPES
    with pytest.raises(BodyRefused, match="6,000,000 backslashes") as refusal:
        parsed(b'"' + b"\\n" * (MAX_ESCAPES + 1) + b'"')
    assert refusal.value.status_code == 413


MANY = [1] * 100_000
SERVER = {"type": "mcp", "server_label": "box", "server_url": "http://127.0.0.1:9/mcp"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", MANY),
        ("tools", MANY),
        ("context_management", MANY),
        ("tools", [{**SERVER, "headers": dict.fromkeys(map(str, range(100_000)), 1)}]),
        ("messages", MANY),
        ("messages", [{"role": "user", "content": MANY}]),
        ("messages", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": MANY}]}]),
        ("system", MANY),
        ("stop_sequences", MANY),
    ],
)
def test_an_invalid_list_costs_a_multiple_of_its_bytes(field: str, value: Any) -> None:
    body = {"model": "m", "input": "x", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], field: value}
    is_anthropics = field in ("messages", "system", "stop_sequences")
    servers = AllowedServers(["127.0.0.1:9"])
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as failure:
            read_messages_request(body, ignores_tools=False) if is_anthropics else read_request(body, servers=servers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(failure.value.param).startswith(field)
    assert peak < 8 * len(json.dumps(body))


async def _use_all_routes(config: GatewayConfig, runtime: Runtime) -> tuple[list[int], list[tuple[str, int]]]:
    """The status of each answer, and the large JSON of this thread; the test's own is read and written in others."""
    answers: list[httpx.Response] = []

    async def ask(method: str, path: str, body: Any = None, **query: str) -> Any:
        content = await asyncio.to_thread(json.dumps, body)
        answers.append(await client.request(method, path, content=content, params=query))
        return None if query else await asyncio.to_thread(answers[-1].json)

    async with serving(config, runtime) as (client, app):
        with LargeJsonHere() as found:
            socket = SocketHere(app)
            socket.ask(await asyncio.to_thread(json.dumps, {**SOCKETS, "input": LONG}))
            await until_true(lambda: app.state.sockets._recent.keys(ANYONE))
            socket.ask(await asyncio.to_thread(json.dumps, {"type": "response.steer", "input": LONG}))
            await until_true(lambda: "response.steer.failed" in socket.sent[-1]["text"])
            socket.ask(
                await asyncio.to_thread(json.dumps, {**SOCKETS, "model": "cut", "instructions": LONG, "input": "Hi."})
            )
            await until_true(lambda: "response.failed" in socket.sent[-1]["text"])
            await socket.leave()
            one = f"/v1/responses/{(await ask('POST', '/v1/responses', {'model': 'm', 'input': LONG}))['id']}"
            await ask("GET", one)
            await ask("GET", one, **{"include[]": "reasoning.encrypted_content"})
            await ask("GET", f"{one}/input_items")
            await ask("GET", f"{one}/notebook")
            await ask("POST", "/v1/responses/compact", {"model": "m", "input": LONG})
            await ask("POST", "/v1/responses/input_tokens", {"model": "m", "input": LONG})
            many = f"/v1/conversations/{(await ask('POST', '/v1/conversations', {}))['id']}/items"
            await ask("POST", many, {"items": [{"role": "user", "content": LONG}]})
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
            said = [{"role": "user", "content": LONG + "code_execution"}]
            await ask("POST", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": said})
    return [answer.status_code for answer in answers], found.sizes


def test_no_large_json_is_parsed_or_written_in_the_event_loop(process_runtime: Runtime, work_dir: Path) -> None:
    models = {"m": lambda _: ScriptedReply(LONG, piece=50_000), "cut": lambda _: ScriptedReply("Hi.", cut_after=2)}
    with ScriptedServer(models) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", pool=0)
        codes, large = asyncio.run(_use_all_routes(config, process_runtime))
    assert codes == [200] * 17
    assert large == []


async def _ask_for_one_under_way(config: GatewayConfig, runtime: Runtime) -> list[tuple[str, int]]:
    asked = await asyncio.to_thread(json.dumps, {"model": "m", "input": "Hi.", "instructions": LONG})
    async with serving(config, runtime) as (client, app):
        with LargeJsonHere() as found:
            asking = asyncio.ensure_future(client.post("/v1/responses", content=asked))
            await until_true(lambda: app.state.jobs.all_of(ResponseJob))
            (job,) = app.state.jobs.all_of(ResponseJob)
            answer = await client.get(f"/v1/responses/{job.id}")
            streamed = await client.get(f"/v1/responses/{job.id}", params={"stream": "true"})
            asking.cancel()
    assert '"status":"in_progress"' in answer.text
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    return found.sizes


def test_a_response_under_way_is_answered_from_a_thread_and_not_streamed(
    process_runtime: Runtime, work_dir: Path
) -> None:
    held = threading.Event()
    with ScriptedServer({"m": lambda _: ScriptedReply(text="Ok.", wait_before=held)}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", pool=0)
        try:
            assert asyncio.run(_ask_for_one_under_way(config, process_runtime)) == []
        finally:
            held.set()


async def _beside_large_ones(config: GatewayConfig, runtime: Runtime) -> None:
    async with serving(config, runtime) as (client, _):
        held = [places().enter("another") for _ in range(AT_ONCE)]
        large = asyncio.ensure_future(client.post("/v1/responses", json={"model": "m", "input": LONG}))
        small = await client.post("/v1/responses", json={"model": "m", "input": "Hi."})
        await until_true(lambda: places().waiting)
        assert (small.status_code, large.done()) == (200, False)
        places().leave(held[0])
        assert (await large).status_code == 200


def test_large_bodies_wait_for_each_other_and_small_ones_for_none(process_runtime: Runtime, work_dir: Path) -> None:
    with ScriptedServer({"m": lambda _: ScriptedReply(text="Ok.")}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", pool=0)
        asyncio.run(_beside_large_ones(config, process_runtime))


def test_so_many_large_pieces_are_read_at_once() -> None:
    async def ten() -> int:
        under_way, most = [0], [0]

        def work(loop: asyncio.AbstractEventLoop) -> None:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()
            under_way[0] -= 1

        loop = asyncio.get_running_loop()
        await asyncio.gather(*(sized(LARGE + 1, work, loop) for _ in range(10)))
        return most[0]

    assert asyncio.run(ten()) == AT_ONCE


async def _in_turns(config: GatewayConfig, runtime: Runtime) -> list[int]:
    async with serving(config, runtime) as (client, _):
        held = [places().enter("another") for _ in range(AT_ONCE)]

        def ask(key: str) -> asyncio.Task[httpx.Response]:
            headers = {"authorization": f"Bearer {key}"}
            return asyncio.ensure_future(
                client.post("/v1/responses", json={"model": "m", "input": LONG}, headers=headers)
            )

        asked = [ask(KEYS[0]) for _ in range(3)]
        await until_true(lambda: places().waiting == 3)
        asked.append(ask(KEYS[1]))
        await until_true(lambda: places().waiting == 4)
        served: list[str] = []
        for ticket in itertools.chain(*places()._waiting.values()):
            ticket.add_done_callback(lambda ticket: served.append(ticket.owner))
        for ticket in held:
            places().leave(ticket)
        codes = [(await each).status_code for each in asked]
        first, other = served[:2]
        assert first != other
        assert served == [first, other, first, first]
        return codes


def test_the_large_bodies_of_one_key_keep_no_other_key_waiting(process_runtime: Runtime, work_dir: Path) -> None:
    with ScriptedServer({"m": lambda _: ScriptedReply(text="Ok.")}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=work_dir / "d", pool=0, api_keys=KEYS)
        assert asyncio.run(_in_turns(config, process_runtime)) == [200] * 4
