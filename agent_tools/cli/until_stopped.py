"""Programs that run until their work ends or a signal ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


def run_until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Run work in an event loop; SIGTERM and SIGINT cancel it. Return whether it came to its end."""
    return asyncio.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> bool:
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
    return not running.cancelled()
