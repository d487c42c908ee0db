"""An event loop in a thread, for what is not started from one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from agent_tools.guest.wire.lookout import LookingSelector, Lookout

JOIN_SECONDS = 5.0  # for what the loop does at the moment to come to its end
READING_THREADS = 1  # of a session, for large arguments: they wait for each other, and hold up no other session


class OwnLoop:
    """Runs from its first use until closed. `most_threads` is how many functions that are not async may run at once.

    It looks a moment for the next call after each answer, before it sleeps.

    Attributes:
        lookout: how long it looks.
        reading: the thread in which large arguments are read and checked.
    """

    def __init__(self, most_threads: int) -> None:
        self._executor = ThreadPoolExecutor(most_threads, thread_name_prefix="agent-tools-host-function")
        self.reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="agent-tools-arguments")
        self.lookout = Lookout()
        self._lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, begun if need be. Raises RuntimeError if it is closed, or no thread is to be had."""
        with self._lock:
            if self._loop is None:
                if self._is_closed:
                    raise RuntimeError("the session is closed")
                self._begin()
            assert self._loop
            return self._loop

    def _begin(self) -> None:
        loop = asyncio.SelectorEventLoop(LookingSelector(self.lookout))
        loop.set_default_executor(self._executor)
        thread = threading.Thread(target=loop.run_forever, name="agent-tools-host-calls", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    def close(self) -> None:
        """Stop the loop; what still runs in it is left."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._is_closed = True
        if loop and thread and not loop.is_closed():
            if thread.is_alive():
                loop.call_soon_threadsafe(loop.stop)
                thread.join(JOIN_SECONDS)
            if not thread.is_alive():  # else it stops as soon as it can, and nobody waits for it
                loop.close()
        self._executor.shutdown(wait=False, cancel_futures=True)  # a function that hangs is its caller's matter
        self.reading.shutdown(wait=False, cancel_futures=True)
