"""Run synchronous work from an event loop in a thread. All async APIs use it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import ReferenceType, ref

from agent_tools.runtime.host_calls.function import serving_loop
from agent_tools.runtime.run_lock import HasLeft, stays, work_for

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


async def in_thread(
    work: Callable[[], T], cancel: Callable[[], object], *, is_shielded: bool = False, has_left: HasLeft = stays
) -> T:
    """Run `work` in a thread. Cancelling calls `cancel`, which should end the work soon, and waits for its end.

    Host calls of the work are tasks of the caller's event loop, if it is asyncio's. With `is_shielded`, work runs to
    its end even if its caller is cancelled. `has_left` is for the work of a stream that its reader may leave.
    """
    import anyio  # slow to import, and not needed without async calls

    task = ("task", anyio.get_current_task().id)
    is_done = anyio.Event()  # ends the child task; cancelling it would leave a cycle of frames and its traceback
    outcome: list[Future[T]] = []

    async def cancel_with_us() -> None:
        try:
            await is_done.wait()
        finally:
            if not is_done.is_set():
                cancel()

    loop = None
    if asyncio := sys.modules.get("asyncio"):  # else no loop of its own is running
        with contextlib.suppress(RuntimeError):  # trio's
            loop = asyncio.get_running_loop()

    async def settle() -> None:
        waiting = anyio.CapacityLimiter(math.inf)  # it may wait for a lock, and must not use up a limited thread
        outcome.append(await anyio.to_thread.run_sync(_settled, work, loop, (task, has_left), limiter=waiting))
        is_done.set()

    with anyio.CancelScope(shield=is_shielded):
        async with anyio.create_task_group() as group:  # a child task waits: asyncio's own cancelling ignores shields
            group.start_soon(cancel_with_us)
            group.start_soon(settle)
        await anyio.lowlevel.checkpoint_if_cancelled()
    return outcome.pop().result()  # if it raises, no frame of the traceback refers to the exception


async def to_its_end(work: Callable[[], object]) -> None:
    """Run `work` in a thread to its end, even if cancelled: for work that releases something."""
    await in_thread(work, lambda: None, is_shielded=True)


async def made_in_thread(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Run `work` in a thread; if the caller is cancelled meanwhile, `undo` ends what it has made."""
    made: list[T] = []
    try:
        await in_thread(lambda: made.append(work()), lambda: None)
    except BaseException:
        for each in made:
            await to_its_end(partial(undo, each))
        raise
    return made.pop()


def iterate_in_thread(items: Generator[T, None, object], cancel: Callable[[], object]) -> AsyncGenerator[T, None]:
    """Yield the items of a generator that runs in a thread, and close it there. For `cancel` see `in_thread`.

    The reader of `async for` that leaves the loop does not close the generator; the event loop does, a little later.
    The next call of the same task waits for that.
    """
    stream: list[ReferenceType[AsyncGenerator[T, None]]] = []
    is_closing = False

    def has_left() -> bool:
        return is_closing or stream[0]() is None

    async def iterate() -> AsyncGenerator[T, None]:
        nonlocal is_closing
        end = object()
        try:
            while (item := await in_thread(lambda: next(items, end), cancel, has_left=has_left)) is not end:
                yield item  # type: ignore[misc]
        finally:
            is_closing = True
            await to_its_end(items.close)

    iterating = iterate()
    stream.append(ref(iterating))
    return iterating


def _settled(work: Callable[[], T], loop: AbstractEventLoop | None, caller: tuple[object, HasLeft]) -> Future[T]:
    """Run the work and return its outcome as a value: a task group would wrap an exception."""
    serving_loop.set(loop)  # only in this thread's context: a later call that blocks the loop must not wait for it
    work_for(*caller)
    done: Future[T] = Future()
    try:
        done.set_result(work())
    except Exception as exc:  # noqa: BLE001  (raised again by whoever asked for the work)
        done.set_exception(exc)
    try:
        return done
    finally:
        del done  # the traceback of its exception refers to this frame
