"""Work in threads for async code: what a call leaves in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from agent_tools.runtime.in_thread import in_thread, made_in_thread

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # trio's own threads keep the frames of work that fails


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Work:
    """Work that returns or raises something that refers to it."""

    def __init__(self, freed: threading.Event, *, fails: bool) -> None:
        weakref.finalize(self, freed.set)
        self.fails = fails

    def do(self) -> Work:
        if self.fails:
            raise ValueError(self)
        return self

    def cancel(self) -> None:
        """Do nothing."""


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("fails", [False, True])
async def test_work_is_freed_with_its_last_reference(fails: bool) -> None:
    freed = threading.Event()
    work = Work(freed, fails=fails)
    if fails:
        with pytest.raises(ValueError, match="Work"):
            await in_thread(work.do, work.cancel)
    else:
        assert await in_thread(work.do, work.cancel) is work
    del work
    assert freed.wait(30)  # the thread lets go of it, too


async def test_what_a_cancelled_call_has_made_is_undone() -> None:
    has_begun, may_end, undone = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(has_begun.set)
        may_end.wait(30)
        return "made"

    call = asyncio.ensure_future(made_in_thread(work, undone.append))
    await has_begun.wait()
    call.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert undone == ["made"]
