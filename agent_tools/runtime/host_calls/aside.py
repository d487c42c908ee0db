"""Long work on a call's arguments runs in a thread and is cancelled with the call."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_tools.guest.wire.budget import GivenUp
from agent_tools.runtime.host_calls.function import CallRefused

T = TypeVar("T")


@dataclass(frozen=True)
class Aside:
    """The thread for the work on one call; `over` is set once the result is not needed any more."""

    threads: Executor
    over: threading.Event = field(default_factory=threading.Event)

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        """Run the work in the thread; cancelling this call ends it.

        Raises:
            CallRefused: it was cancelled.
        """
        context = contextvars.copy_context()
        try:
            return await asyncio.wrap_future(self.threads.submit(context.run, work, *args))
        except asyncio.CancelledError:
            self.over.set()
            raise
        except GivenUp as exc:
            raise CallRefused("HostCallError", "The call is over.", "cancelled") from exc


current: contextvars.ContextVar[Aside | None] = contextvars.ContextVar("current", default=None)
"""Set during a call with large arguments."""


async def aside(work: Callable[..., T], *args: Any) -> T:
    """Run work on a call's arguments: here if they are small, else in a thread."""
    beside = current.get()
    return work(*args) if beside is None else await beside.do(work, *args)


def look_up() -> None:
    """Check that the result of work on arguments is still needed. Long work calls it regularly.

    Raises:
        GivenUp: it is not needed.
    """
    beside = current.get()
    if beside is not None and beside.over.is_set():
        raise GivenUp("the call is over")
