"""An asyncio event loop in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop  # slow to import

JOIN_SECONDS = 5.0  # seconds for the loop's current step to end


class LoopThread:
    """Runs an event loop in a daemon thread, until closed.

    Raises:
        RuntimeError: the thread cannot be started.
    """

    def __init__(self, name: str, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    @property
    def is_here(self) -> bool:
        """True if called in the loop's thread, which must not wait."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Stop the loop soon, without ending its tasks."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)

    def close(self) -> None:
        """Stop the loop, and wait a while for the end of its current step. Not to be called in the loop."""
        self.stop()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()
