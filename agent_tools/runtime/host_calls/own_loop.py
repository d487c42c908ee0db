"""An event loop in a thread, for what is not started from one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

READING_THREADS = 1  # of a session, for large arguments: they wait for each other, and hold up no other session


class OwnLoop:
    """Runs until closed. `most_threads` is how many functions that are not async may run in it at the same time.

    Attributes:
        reading: the thread in which large arguments are read and checked.
    """

    def __init__(self, most_threads: int) -> None:
        self.loop = asyncio.new_event_loop()
        self._executor = ThreadPoolExecutor(most_threads, thread_name_prefix="agent-tools-host-function")
        self.loop.set_default_executor(self._executor)
        self.reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="agent-tools-arguments")
        self._thread = threading.Thread(target=self.loop.run_forever, name="agent-tools-host-calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the loop; what still runs in it is left."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._executor.shutdown(wait=False, cancel_futures=True)  # a function that hangs is its caller's matter
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.loop.close()
