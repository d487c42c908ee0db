"""E2B's wire without a sandbox: timers beside a store that fails, watchers, and times of queries."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import httpx

from agent_tools.containers.failures import RowsAway
from agent_tools.limits import MAX_TIMEOUT
from agent_tools.wires.e2b.code import _lines
from agent_tools.wires.e2b.state import ROUTES, E2BSandbox, E2BState, E2BWire
from agent_tools.wires.open_resources import CodeRun
from agent_tools.wires.routing import application


class FailingRows:
    """A store that does not answer the first questions."""

    def __init__(self, state: E2BState, failures: int) -> None:
        self._state = state
        self._failures = failures

    def get(self, *_: Any, **__: Any) -> Any:
        if self._failures:
            self._failures -= 1
            raise RowsAway
        return SimpleNamespace(value=self._state.model_dump_json())

    def delete(self, *_: Any, **__: Any) -> None: ...


def test_a_sandbox_ends_in_time_although_the_store_was_away_then() -> None:
    ended: list[tuple[str, str]] = []
    containers = SimpleNamespace(discard=lambda *place: ended.append(place))

    async def main() -> None:
        state = E2BState(template="base", metadata={}, envs={}, ends=time.time() + 0.01)
        wire = E2BWire(cast("Any", containers), cast("Any", FailingRows(state, 3)), retry_seconds=0)
        wire.time(E2BSandbox(cast("Any", SimpleNamespace(owner="me", id="i1")), state))
        await asyncio.gather(*wire._tasks)

    asyncio.run(main())
    assert ended == [("me", "i1")]


def test_a_stream_that_never_begins_leaves_no_watcher() -> None:
    watch = next(each for each in ROUTES.operations if each.path == "/filesystem.Filesystem/WatchDir").handler

    async def done(*_: Any) -> Any:
        return SimpleNamespace(place=("me", "i1"), id="i1")

    async def main() -> dict[str, Any]:
        wire = SimpleNamespace(watchers={})
        await watch(SimpleNamespace(here=done, use=done, wire=wire), path=".")
        return wire.watchers

    assert asyncio.run(main()) == {}


def test_forms_whose_adding_was_cancelled_are_added_by_the_next_call() -> None:
    class Kernel:
        added = 0

        def run_code(self, code: str, cancelled: Event) -> Any:
            self.added += not cancelled.is_set()
            return SimpleNamespace(error="cancelled" if cancelled.is_set() else None)

        def stream(self, _: str, seconds: float, __: Event) -> Any:
            assert seconds == MAX_TIMEOUT  # the end of the sandbox's time, which may change meanwhile, ends it
            return iter(())

    kernel = Kernel()
    acquired = (kernel, SimpleNamespace(result=str))
    containers = SimpleNamespace(acquire=lambda *_: nullcontext(acquired))
    call = SimpleNamespace(wire=SimpleNamespace(counts=WeakKeyDictionary(), containers=containers))
    box = SimpleNamespace(id="i1", state=SimpleNamespace(envs={}, ends=0))
    for is_cancelled, added in ((True, 0), (False, 1), (False, 1)):
        stop = CodeRun()
        if is_cancelled:
            stop.event.set()
        _, counted = _lines(cast("Any", call), cast("Any", box), None, "1", {}, stop)
        assert kernel.added == added
    assert json.loads(counted)["execution_count"] == 2


def test_a_time_without_its_zone_is_refused() -> None:
    app = application(ROUTES.made())
    app.state.wire = None

    async def owned(scope: Any, *channels: Any) -> None:
        await app({**scope, "owner": "me", "for_users": False}, *channels)

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(owned), base_url="http://localhost") as client:
            return await client.get("/v2/sandboxes", params={"startedAfter": "2026-01-01T00:00:00"})

    answer = asyncio.run(main())
    assert (answer.status_code, "timezone" in answer.text) == (422, True)
