"""Work on JSON that never blocks the event loop for long: large pieces go to a few threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

from agent_tools.limits import KIB

LARGE = 256 * KIB  # bytes of JSON; more is neither parsed nor written in the event loop
_T = TypeVar("_T")


class LargeJson:
    """The places for work on large JSON, `at_once` for all requests, which bounds its memory. For one event loop."""

    def __init__(self, at_once: int) -> None:
        self.places = asyncio.Semaphore(max(1, at_once))

    async def read(self, size: int, work: Callable[..., _T], *args: Any) -> _T:
        """Do work on so many bytes of JSON; in a thread if they are many."""
        return work(*args) if size <= LARGE else await self.in_thread(size, work, *args)

    async def in_thread(self, size: int, work: Callable[..., _T], *args: Any) -> _T:
        """Do work that also asks the store, and so always takes a thread."""
        if size <= LARGE:
            return await run_in_threadpool(work, *args)
        async with self.places:
            return await run_in_threadpool(work, *args)
