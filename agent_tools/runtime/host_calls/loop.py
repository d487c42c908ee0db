"""The session's own event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from agent_tools.guest.wire.spin_wait import SpinningSelector, SpinWait
from agent_tools.machine.loop_thread import LoopThread


class CallLoop:
    """An event loop in a thread of the session, started at first use.

    After each answer it polls for a moment for the next call before it sleeps.

    Attributes:
        spin: the time for which it polls, in seconds.
        reading: the thread that decodes and checks large arguments, one after the other.
    """

    def __init__(self, most_threads: int) -> None:
        self._functions = ThreadPoolExecutor(most_threads, thread_name_prefix="agent-tools-host-function")
        self.reading = ThreadPoolExecutor(1, thread_name_prefix="agent-tools-arguments")
        self.spin = SpinWait()
        self._lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self._thread: LoopThread | None = None
        self._is_closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, started if needed. Raises RuntimeError if it is closed, or no thread can be started."""
        with self._lock:
            if self._thread is None:
                if self._is_closed:
                    raise RuntimeError("the session is closed")
                loop = asyncio.SelectorEventLoop(SpinningSelector(self.spin))
                loop.set_default_executor(self._functions)
                self._thread = LoopThread("agent-tools-host-calls", loop)
            return self._thread.loop

    def close(self) -> None:
        """Stop the loop; tasks that still run in it are left."""
        with self._lock:
            thread, self._is_closed = self._thread, True
        if thread:
            thread.close()
        for threads in (self._functions, self.reading):  # does not wait for a function that hangs
            threads.shutdown(wait=False, cancel_futures=True)
