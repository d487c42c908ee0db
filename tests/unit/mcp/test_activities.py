"""What is under way, without any sandbox: how much of it there may be, and what is kept of it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from agent_tools.containers.failures import NoSandbox
from agent_tools.mcp.activities import Activities
from agent_tools.mcp.activity import Activity, ActivityPlace
from agent_tools.mcp.config import McpConfig, McpLimits

KEYS = ("key-of-one", "key-of-two")


class Work(Activity):
    """An activity that is over once it may be."""

    def __init__(self, container: str, owner: str = "local") -> None:
        containers = type("Containers", (), {"config": McpConfig(api_keys=() if owner == "local" else KEYS)})
        super().__init__(
            ActivityPlace(cast("Any", containers), cast("Any", None), lambda told: None, owner, container), ""
        )
        self.may_end = threading.Event()

    def run(self) -> None:
        self._cancelled.wait() if not self.may_end.is_set() else None
        self._ended = 1.0

    def _work(self, sandbox: Any, cancelled: threading.Event) -> None: ...


def ended(container: str) -> Work:
    work = Work(container)
    work.may_end.set()
    return work


async def unheard(seconds: float, message: str) -> None: ...


def under_way(talk: Callable[[Activities], Awaitable[None]], **bounds: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            activities = Activities(group, McpLimits(**bounds))
            await talk(activities)
            await activities.close()

    anyio.run(main)


def test_of_the_ends_that_nobody_asks_for_only_the_newest_are_kept() -> None:
    async def talk(activities: Activities) -> None:
        for container in "abcdefghi":
            activities.begin("code", work := ended(container))
            await activities.follow(work, 60, unheard)
        activities.begin("code", Work("j"))
        assert [each for each in "abcdefghij" if activities.find("local", each) is None] == ["a"]

    under_way(talk)


def test_the_ends_of_all_keys_are_bounded_and_the_key_that_has_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.mcp.activities.MAX_UNREAD_OF_ALL", 3)

    async def talk(activities: Activities) -> None:
        for owner, container in (("one", "a"), ("two", "b"), ("one", "c"), ("two", "d"), ("one", "e")):
            work = Work(container, owner)
            work.may_end.set()
            activities.begin("code", work)
            await activities.follow(work, 60, unheard)
        activities.begin("code", Work("f", "two"))
        left = [(owner, each) for owner in ("one", "two") for each in "abcde" if activities.find(owner, each)]
        assert left == [("one", "c"), ("one", "e"), ("two", "d")]

    under_way(talk)


def test_one_that_is_over_is_not_waited_for_although_no_time_is_left() -> None:
    async def talk(activities: Activities) -> None:
        activities.begin("code", work := ended("a"))
        await activities.follow(work, 60, unheard)
        assert await activities.take_turn(work, -1.0)

    under_way(talk)


def test_no_more_is_begun_than_may_be_at_once() -> None:
    async def talk(activities: Activities) -> None:
        activities.begin("code", Work("a"))
        activities.begin("command", Work("a"))
        with pytest.raises(NoSandbox, match="Too many calls are running"):
            activities.begin("code", Work("b"))

    under_way(talk, max_runs=2)


def test_a_key_has_its_share_of_runs() -> None:
    async def talk(activities: Activities) -> None:
        for container in "abc":
            activities.begin("code", Work(container, "key"))
        with pytest.raises(NoSandbox, match="3 calls of yours are running"):
            activities.begin("command", Work("a", "key"))
        activities.begin("code", Work("d", "another"))

    under_way(talk, max_runs=4)


def test_who_waits_for_a_cancelled_one_is_not_kept_waiting() -> None:
    async def talk(activities: Activities) -> None:
        activities.begin("code", work := Work("a"))
        async with anyio.create_task_group() as group:
            group.start_soon(activities.follow, work, 60, unheard)
            await anyio.lowlevel.checkpoint()
            work.cancel()
        assert work.is_over
        assert (work.followers, activities.find("local", "a")) == (0, None)

    under_way(talk)
