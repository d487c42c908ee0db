"""The event loop of a process, beyond what its members' tests show."""

from __future__ import annotations

import gc
import threading
import weakref

from agent_tools.machine.event_loop import EventLoop


def test_a_loop_that_has_ended_is_freed_with_its_last_reference() -> None:
    freed = threading.Event()
    gc.disable()
    try:
        loop = EventLoop()
        weakref.finalize(loop, freed.set)
        loop.stop()
        del loop
        assert freed.wait(30)
    finally:
        gc.enable()
