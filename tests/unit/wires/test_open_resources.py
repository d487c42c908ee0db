"""What stays open in containers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.containers.mount import Mount
from agent_tools.wires import e2b, librechat
from agent_tools.wires.open_resources import OpenResources

PLACE = ("owner", "container")


class Containers:
    """Holds containers as long as something is open in them."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def pin(self, id_: str, rank: int, begin: Callable[[Any], Any], timeout: float = 0.0) -> Iterator[Any]:
        self.held += 1
        yield begin(None)
        self.held -= 1


def test_what_a_cancelled_request_has_opened_ends() -> None:
    containers, ended, may_begin = Containers(), list[str](), threading.Event()
    resources = OpenResources(containers, 1, 1, "things", ended.append, lambda _: False)

    async def main() -> None:
        has_begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def begin(_: object) -> str:
            loop.call_soon_threadsafe(has_begun.set)
            may_begin.wait(30)
            return "thing"

        opening = asyncio.ensure_future(resources.open(PLACE, lambda: "id", begin))
        await has_begun.wait()
        opening.cancel()
        may_begin.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (resources.of(PLACE), ended, containers.held) == ([], ["thing"], 0)
        assert (await resources.open(PLACE, lambda: "id", lambda _: "other")).it == "other"

    asyncio.run(main())


def test_all_end_also_if_one_fails() -> None:
    ended = list[str]()

    def end(thing: str) -> None:
        ended.append(thing)
        if thing == "failing":
            raise OSError("it is gone")

    async def main() -> None:
        resources = OpenResources(Containers(), 1, 9, "things", end, lambda _: False)
        for thing in ("failing", "other"):
            await resources.open(PLACE, lambda: "id", lambda _, thing=thing: thing)  # type: ignore[misc]
        with pytest.raises(OSError, match="it is gone"):
            await resources.close()

    asyncio.run(main())
    assert sorted(ended) == ["failing", "other"]


@pytest.mark.parametrize(("mount", "resources"), [(e2b.MOUNT, "commands"), (librechat.MOUNT, "scripts")])
def test_a_door_ends_what_is_open_also_if_another_door_fails_to_close(mount: Mount, resources: str) -> None:
    containers, rows = Containers(), SimpleNamespace()
    ended = threading.Event()

    async def main() -> None:
        async with mount.open(containers, rows) as app:  # type: ignore[arg-type]
            resources_of: Any = getattr(app.state.wire, resources)
            process = SimpleNamespace(kill=ended.set, is_over=False, wait=lambda: asyncio.to_thread(ended.wait))
            await resources_of.open(PLACE, lambda: "id", lambda _: process)
            raise OSError("another door")

    with pytest.raises(OSError, match="another door"):
        asyncio.run(main())
    assert ended.is_set()
