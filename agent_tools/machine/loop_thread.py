"""An asyncio event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

JOIN_SECONDS = 5.0  # seconds for the loop's current step to end

T = TypeVar("T")


class LoopThread:
    """Runs an event loop in a daemon thread, until closed.

    Raises:
        RuntimeError: the thread cannot be started.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop. Any thread may call it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop without ending its tasks. Does not wait for a step that hangs."""
        if self.loop.is_closed():
            return
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(JOIN_SECONDS)
        if not self._thread.is_alive():
            self.loop.close()
