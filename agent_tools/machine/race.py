"""A race of coroutines: the first that ends cancels the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def race(*works: Awaitable[Any]) -> set[asyncio.Task[Any]]:
    """Wait until the first of several works ends, and return it; cancel the others, and wait for their end, too."""
    tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(each) for each in works]
    try:
        return (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
