"""Places and the queue before them, shared between keys."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tools.containers.sandbox_queue import SandboxQueue
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs import Jobs
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply, ScriptedServer
from tests.gateway.asking import CODE_TOOL, has_ended, post, until
from tests.gateway.conftest import NewGateway
from tests.gateway.in_loop import serving, until_true


def test_more_than_may_wait_are_sent_away_and_told_when_to_return(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    slow = ScriptedReply(text="Ok.", wait_before=go_on)
    gateway = new_gateway({"m": lambda _: slow, "n": ["Ok."]}, max_sandboxes=1, max_queue=0, queue_timeout=7)
    begun = post(gateway, background=True).json()
    refused = post(gateway)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "7"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert post(gateway, model="n", tools=[]).status_code == 200  # what needs no sandbox does not wait for one
    go_on.set()
    until(lambda: has_ended(gateway, begun["id"]))
    assert until(lambda: post(gateway).status_code == 200)


def test_whoever_waits_too_long_is_sent_away(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    slow = ScriptedReply(text="Ok.", wait_before=go_on)
    gateway = new_gateway({"m": lambda _: slow}, max_sandboxes=1, queue_timeout=0.05)
    post(gateway, background=True)
    refused = post(gateway)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    go_on.set()


def test_counting_the_tokens_of_an_input_takes_a_place_of_its_key(new_gateway: NewGateway) -> None:
    go_on = threading.Event()
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.", wait_before=go_on)}, max_responses=1)
    begun = post(gateway, background=True, tools=[]).json()
    url, asked = f"{gateway.url}/v1/responses/input_tokens", {"model": "m", "input": "Hi."}
    refused = httpx.post(url, json=asked)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    go_on.set()
    until(lambda: has_ended(gateway, begun["id"]))
    until(lambda: gateway.app.state.jobs.active == 0)
    assert [httpx.post(url, json=asked).status_code for _ in range(2)] == [200, 200]


KEYS = ("first-key-123", "second-key-123")


def test_who_asks_for_everything_does_not_send_others_away(work_dir: Path) -> None:
    async def story() -> None:
        config = GatewayConfig("http://u", api_keys=KEYS, data_dir=work_dir, max_sandboxes=4, max_queue=8)
        queue = SandboxQueue(4, 4)
        with ThreadPoolExecutor(1) as pool:
            jobs = Jobs(config, pool, queue)
            asked = [(owner, asyncio.ensure_future(jobs.enter(owner, needs_sandbox=True))) for owner in "A" * 12]
            await until_true(lambda: queue.waiting == 8)
            asked += [(owner, asyncio.ensure_future(jobs.enter(owner, needs_sandbox=True))) for owner in "BBBBB"]
            await until_true(lambda: sum(each.done() for _, each in asked) == 9)
            refused = [owner for owner, each in asked if each.done() and each.exception()]
            assert ("".join(refused), queue.waiting) == ("AAAAB", 8)
            for _, each in asked:
                each.cancel()
            await asyncio.gather(*(each for _, each in asked), return_exceptions=True)
            assert queue.waiting == 0

    asyncio.run(story())


async def _b_beside_a(config: GatewayConfig, runtime: Runtime, go_on: threading.Event, asked: dict[str, Any]) -> None:
    async with serving(config, runtime) as (client, app):
        jobs = app.state.jobs

        async def ask(key: str) -> int:
            body = {"model": "m", "input": "Go.", **asked}
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.post("/v1/responses", json=body, headers=headers)).status_code

        of_a = [asyncio.ensure_future(ask(KEYS[0])) for _ in range(12)]
        await until_true(lambda: jobs.active + sum(each.done() for each in of_a) == 12)
        of_b = asyncio.ensure_future(ask(KEYS[1]))
        await asyncio.wait([of_b], timeout=0.2)
        go_on.set()
        assert await of_b == 200
        assert set(await asyncio.gather(*of_a)) <= {200, 429}


@pytest.mark.parametrize("asked", [{"tools": [CODE_TOOL]}, {}], ids=["with a sandbox", "without"])
def test_a_key_that_takes_all_it_can_get_leaves_room_for_another(
    process_runtime: Runtime, work_dir: Path, asked: dict[str, Any]
) -> None:
    go_on = threading.Event()
    with ScriptedServer({"m": lambda _: ScriptedReply(text="Ok.", wait_before=go_on)}) as upstream:
        limits = {"max_responses": 12} if not asked else {"max_sandboxes": 4, "max_queue": 8}
        config = GatewayConfig(upstream.base_url, api_keys=KEYS, data_dir=work_dir / "d", pool=0, **limits)
        asyncio.run(_b_beside_a(config, process_runtime, go_on, asked))


def test_requests_of_one_key_that_wait_in_threads_leave_threads_for_others(
    process_runtime: Runtime, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GatewayConfig("http://127.0.0.1:1", data_dir=work_dir, api_keys=KEYS)
    mine, yours = ({"Authorization": f"Bearer {key}"} for key in KEYS)

    async def main() -> None:
        async with serving(config, process_runtime) as (client, app):
            services, may_go_on, waiting = app.state.services, threading.Event(), list[str]()
            find = services.uploads.find

            def hanging(owner: str, id_: str) -> Any:
                waiting.append(id_)
                may_go_on.wait(60)
                return find(owner, id_)

            monkeypatch.setattr(services.uploads, "find", hanging)
            most = config.most_of_key(config.max_connections)
            asked = [asyncio.ensure_future(client.get("/v1/files/file-1", headers=mine)) for _ in range(most)]
            try:
                await asyncio.wait_for(until_true(lambda: len(waiting) == most), 60)
                answer = await asyncio.wait_for(client.get("/v1/files", headers=yours), 60)
            finally:
                may_go_on.set()
            assert answer.status_code == 200
            assert {(await each).status_code for each in asked} == {404}

    asyncio.run(main())
