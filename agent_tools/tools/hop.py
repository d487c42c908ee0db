"""The one hop from async into the synchronous core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


async def in_thread(function: Callable[[], Answer], on_cancel: Callable[[], object]) -> Answer:
    """Run a function in a thread. Being cancelled calls `on_cancel`, which should end it, and then waits for its end.

    For asyncio and trio.
    """
    import anyio
    import anyio.lowlevel
    import anyio.to_thread

    is_finished = False

    async def cancel_with_us() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not is_finished:
                on_cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_with_us)
        answer = await anyio.to_thread.run_sync(function)
        is_finished = True
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint_if_cancelled()
    return answer
