"""What stays open in containers, on a shelf."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_tools.wires.opened import Shelf

PLACE = ("owner", "container")


class Containers:
    """Holds containers as long as something is open in them."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def attend(self, id_: str, rank: int, begin: Callable[[Any], Any], patience: float = 0.0) -> Iterator[Any]:
        self.held += 1
        yield begin(None)
        self.held -= 1


def test_what_a_cancelled_request_has_opened_ends() -> None:
    containers, ended, may_begin = Containers(), list[str](), threading.Event()
    shelf = Shelf(containers, 1, 1, "things", ended.append, lambda _: False)

    async def main() -> None:
        has_begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def begin(_: object) -> str:
            loop.call_soon_threadsafe(has_begun.set)
            may_begin.wait(30)
            return "thing"

        opening = asyncio.ensure_future(shelf.open(PLACE, lambda: "id", begin))
        await has_begun.wait()
        opening.cancel()
        may_begin.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (shelf.of(PLACE), ended, containers.held) == ([], ["thing"], 0)
        assert (await shelf.open(PLACE, lambda: "id", lambda _: "other")).it == "other"

    asyncio.run(main())
