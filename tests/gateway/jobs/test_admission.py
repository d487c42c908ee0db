"""Places and the queue before them, shared between keys."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs import SandboxQueue
from agent_tools.gateway.requests.failures import ApiError, stopped
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


KEYS = ("first-key-123", "second-key-123")


class Scene:
    """Owners that ask for places, in order; `entered` are those who got one, `refused` those who were sent away."""

    def __init__(self, places: int, queue: int, **more: Any) -> None:
        self.admission = SandboxQueue(places, queue, 60.0, "place", **more)
        self.entered: list[str] = []
        self.refused: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, owners: str) -> None:
        for owner in owners:
            self.tasks.append(asyncio.ensure_future(self._one(owner)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def leave(self, owners: str) -> None:
        for owner in owners:
            self.admission.leave(owner)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _one(self, owner: str) -> None:
        try:
            await self.admission.enter(owner)
            self.entered.append(owner)
        except ApiError:
            self.refused.append(owner)


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_places_that_become_free_go_round_by_key() -> None:
    async def story() -> None:
        scene = Scene(2, 100)
        await scene.ask("AAAAAABBC")
        assert scene.entered == ["A", "A"]
        await scene.leave("AAABCAB")
        assert "".join(scene.entered[2:]) == "ABCABAA"
        assert scene.admission.waiting == 0

    play(story())


def test_who_asks_for_everything_does_not_send_others_away() -> None:
    async def story() -> None:
        scene = Scene(4, 8)
        await scene.ask("A" * 12)
        assert (len(scene.entered), scene.admission.waiting, scene.refused) == (4, 8, [])
        await scene.ask("BBBBB")
        assert (scene.admission.waiting, "".join(scene.refused)) == (8, "AAAAB")
        await scene.leave("AA")
        assert scene.entered[4:] == ["A", "B"]
        await scene.ask("AA")
        assert "".join(scene.refused) == "AAAAB"
        await scene.ask("A")
        assert "".join(scene.refused) == "AAAABA"

    play(story())


def test_a_key_has_at_most_its_share_of_the_places() -> None:
    async def story() -> None:
        scene = Scene(4, 8, most=3)
        await scene.ask("AAAAA")
        assert (len(scene.entered), scene.admission.waiting) == (3, 2)
        await scene.ask("B")
        assert scene.entered == ["A", "A", "A", "B"]
        await scene.leave("B")
        assert scene.admission.waiting == 2
        await scene.leave("A")
        assert (scene.entered[4:], scene.admission.waiting) == (["A"], 1)

    play(story())


def test_who_gives_up_waiting_takes_no_place() -> None:
    async def story() -> None:
        scene = Scene(1, 8)
        await scene.ask("ABBC")
        scene.tasks[1].cancel()
        await scene.leave("A")  # before the task that gives up has heard of it
        assert scene.entered == ["A", "B"]
        await scene.leave("B")
        assert (scene.entered, scene.admission.waiting) == (["A", "B", "C"], 0)
        await scene.leave("C")
        await scene.ask("D")
        assert scene.entered[-1] == "D"

    play(story())


def test_a_place_that_is_handed_over_to_who_has_just_given_up_goes_on() -> None:
    async def story() -> None:
        scene = Scene(1, 8)
        await scene.ask("AB")
        scene.admission.leave("A")
        scene.tasks[1].cancel()  # after the place was given to it
        await asyncio.wait(scene.tasks)
        await scene.ask("C")
        assert scene.entered == ["A", "C"]

    play(story())


def test_all_who_wait_are_sent_away_at_the_end() -> None:
    async def story() -> None:
        scene = Scene(1, 8)
        await scene.ask("AAB")
        scene.admission.close(stopped())
        await asyncio.wait(scene.tasks)
        assert (scene.refused, scene.admission.waiting) == (["A", "B"], 0)

    play(story())


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
