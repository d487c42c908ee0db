"""The event loop of all networks by list: one thread for every sandbox of this process, while there is any.

Names are looked up in a few threads beside it, since the system's resolver can only be waited for, and pages of the
package index are parsed in one more, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from agent_tools.machine.event_loop import abandon_after_fork

THREADS = 8  # names that are looked up at the same time, of all sandboxes

T = TypeVar("T")


class EgressLoop:
    """Runs until closed; `run` is for any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._waiting = ThreadPoolExecutor(THREADS, thread_name_prefix="agent-tools-lookup")
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="agent-tools-pages")
        self._thread = threading.Thread(target=self.loop.run_forever, name="agent-tools-egress", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do something in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def beside(self, work: Callable[[], T]) -> T:
        """Do something that waits in one of the threads."""
        return await self.loop.run_in_executor(self._waiting, work)

    async def parse(self, work: Callable[[], T]) -> T:
        """Do something that computes in the one thread for it: for all sandboxes, one after the other."""
        return await self.loop.run_in_executor(self._parsing, work)

    def close(self) -> None:
        """Stop; what still runs in it is left."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        for threads in (self._waiting, self._parsing):
            threads.shutdown(wait=False, cancel_futures=True)
        self.loop.close()


class _Shared:
    """The process's loop, and how many sandboxes use it. A forked child has none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.loop: EgressLoop | None = None
        abandon_after_fork(self)

    def abandon(self) -> None:
        """Forget, in a forked child, the thread that only the parent has."""
        self.lock, self.users, self.loop = threading.Lock(), 0, None


_shared: _Shared | None = None
_making = threading.Lock()


def enter() -> EgressLoop:
    """Return the loop, started if nobody uses it yet; every `enter` is followed by a `leave`."""
    global _shared
    with _making:
        _shared = _shared or _Shared()
    with _shared.lock:
        _shared.users += 1
        _shared.loop = _shared.loop or EgressLoop()
        return _shared.loop


def leave() -> None:
    """Stop the loop if nobody else uses it."""
    if _shared is None:
        return
    with _shared.lock:
        _shared.users = max(0, _shared.users - 1)
        if not _shared.users and _shared.loop:
            _shared.loop.close()
            _shared.loop = None
