"""Jobs: ended by a failure, by a client that leaves, and many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest

from agent_tools.containers.sandbox_queue import SandboxQueue
from agent_tools.errors import KernelDied
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.jobs import Job, Jobs
from agent_tools.gateway.requests.api_errors import ApiError
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import CODE_TOOL, EXECUTE, INCLUDE, SLEEP, code, is_idle, outputs, run, until
from tests.gateway.conftest import NewGateway
from tests.gateway.in_loop import until_true
from tests.gateway.strict import check_stream

ENOUGH = 60.0  # seconds for what takes milliseconds


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_ends_its_code_and_frees_its_place(new_gateway: NewGateway, is_streamed: bool) -> None:
    gateway = new_gateway({"m": lambda _: code(SLEEP)}, max_sandboxes=1)
    body = {"model": "m", "input": "Go.", "tools": [CODE_TOOL], "stream": is_streamed}
    with httpx.Client(timeout=None) as client, ThreadPoolExecutor() as pool:
        asked = pool.submit(client.post, f"{gateway.url}/v1/responses", json=body)
        until(lambda: any(gateway.services.containers.running().values()))
        _hang_up(client)
        with pytest.raises(httpx.HTTPError):
            asked.result()
    until(lambda: is_idle(gateway))


def _hang_up(client: httpx.Client) -> None:
    import socket

    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        stream = connection._connection._network_stream.get_extra_info("socket")
        stream.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("match_text", [False, True])
def test_a_chat_client_that_leaves_leaves_no_more_than_its_conversation(
    new_gateway: NewGateway, match_text: bool
) -> None:
    gateway = new_gateway({"m": [run(SLEEP)]}, match_text=match_text)
    messages: Any = [{"role": "user", "content": "Go."}]
    tools: Any = [EXECUTE]
    events = gateway.client().chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
    next(iter(events))
    until(lambda: any(gateway.services.containers.running().values()))
    events.close()
    until(lambda: is_idle(gateway))
    left = gateway.services.containers.all_of("local")
    assert len(left) == match_text, "it may go on from what it saw"


def test_many_at_once_do_not_mix(new_gateway: NewGateway) -> None:
    def obey(request: dict[str, Any]) -> ScriptedReply:
        said = [message for message in request["messages"] if message["role"] == "tool"]
        name = next(message["content"] for message in request["messages"] if message["role"] == "user")
        return ScriptedReply(text=f"{name} is done.") if len(said) == 3 else code(f"print({name!r}, {len(said)})")

    gateway = new_gateway({"m": obey}, max_sandboxes=3, max_queue=50, queue_timeout=120)

    async def one(client: openai.AsyncOpenAI, name: str) -> None:
        events = await client.responses.create(  # type: ignore[call-overload]
            model="m", input=name, tools=[CODE_TOOL], include=INCLUDE, stream=True
        )
        found = check_stream([json.loads(event.to_json(exclude_unset=True)) async for event in events])
        body = found[-1]["response"]
        logs = [call["outputs"][0]["logs"] for call in outputs(body)]
        assert logs == [f"{name} {number}\n" for number in range(3)]
        assert body["output"][-1]["content"][0]["text"] == f"{name} is done."

    async def all_of_them() -> None:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=120)
        async with client, anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(one, client, f"name-{number}")

    anyio.run(all_of_them)


class Broken(Job):
    """Yields one event, then raises."""

    is_closed = False

    def __init__(self, exc: Exception) -> None:
        super().__init__(EventLog(10_000))
        self._exc = exc

    def events(self) -> Generator[dict[str, Any], None, None]:
        yield {"kind": "begun"}
        raise self._exc

    def failed(self, failure: ApiError) -> Iterator[dict[str, Any]]:
        yield {"kind": failure.code}

    def close(self) -> None:
        self.is_closed = True


def test_a_job_that_raises_tells_it_closes_and_leaves_its_place(work_dir: Path) -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as pool:
            jobs = Jobs(GatewayConfig("http://u", data_dir=work_dir), pool, SandboxQueue(1, 1))
            job = Broken(KernelDied("it is gone"))
            place = await jobs.enter("me", needs_sandbox=True)
            jobs.follow(job, place)
            assert jobs.all_of(Broken) == [job]
            await job.log.closed()
            assert [event.value["kind"] for event in job.log.events] == ["begun", "code_interpreter_error"]
            assert (job.failure and job.failure.status, job.is_closed) == (500, True)
            assert (jobs.active, jobs.all_of(Broken), dict(jobs._held)) == (0, [], {})

    asyncio.run(story())


def test_an_owner_is_refused_only_while_it_may_not_ask(work_dir: Path) -> None:
    async def story() -> None:
        owners = {"me"}
        with ThreadPoolExecutor(1) as pool:
            config = GatewayConfig("http://u", data_dir=work_dir)
            jobs = Jobs(config, pool, SandboxQueue(1, 1), may_use=owners.__contains__)
            place = await jobs.enter("me", needs_sandbox=False)
            owners.clear()
            jobs.end_of(frozenset({"me"}))
            with pytest.raises(ApiError, match="revoked"):
                await jobs.enter("me", needs_sandbox=False)
            owners.add("me")  # in another group, say
            jobs.leave(await jobs.enter("me", needs_sandbox=False))
            jobs.leave(place)
            assert dict(jobs._held) == {}

    asyncio.run(story())


def test_the_jobs_of_a_revoked_key_that_wait_are_refused_at_once(work_dir: Path) -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as pool:
            queue = SandboxQueue(1, 1)
            jobs = Jobs(GatewayConfig("http://u", data_dir=work_dir), pool, queue)
            held = queue.enter("another")
            waiting = {name: asyncio.ensure_future(jobs.enter(name, needs_sandbox=True)) for name in ("me", "you")}
            await until_true(lambda: queue.waiting == 2)
            jobs.end_of(frozenset({"me"}))
            with pytest.raises(ApiError, match="revoked"):
                await waiting["me"]
            assert (queue.waiting, jobs.active) == (1, 1)
            queue.leave(held)
            jobs.leave(await waiting["you"])
            assert dict(jobs._held) == {}

    asyncio.run(story())


class Endless(Broken):
    """Works until it is cancelled."""

    def events(self) -> Generator[dict[str, Any], None, None]:
        assert self.cancel.wait(ENOUGH)
        yield {"kind": "cancelled"}
        raise self._exc


def test_a_job_that_entered_before_the_gateway_stopped_and_starts_after_it_is_ended(work_dir: Path) -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as pool:
            jobs = Jobs(GatewayConfig("http://u", data_dir=work_dir), pool, SandboxQueue(1, 1))
            place = await jobs.enter("me", needs_sandbox=True)
            await jobs.close()
            job = Endless(KernelDied("it was cancelled"))
            jobs.follow(job, place)
            await job.log.closed()
            assert [event.value["kind"] for event in job.log.events] == ["cancelled", "gateway_stopped"]
            assert (job.is_closed, jobs.active) == (True, 0)

    asyncio.run(story())
