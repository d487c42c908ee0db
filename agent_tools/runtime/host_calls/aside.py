"""Work on a call's arguments that may take long: done in a thread beside the event loop, and given up with the call."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_tools.guest.wire.budget import GivenUp
from agent_tools.runtime.host_calls.function import Refused

T = TypeVar("T")


@dataclass(frozen=True)
class Aside:
    """The thread in which the work on one call is done, and whether the call is over."""

    threads: Executor
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """True once nobody waits for the work any more."""
        return self._over.is_set()

    def give_up(self) -> None:
        """Have work that is under way end at its next look."""
        self._over.set()

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        """Do it in the thread; cancelling this gives it up.

        Raises:
            Refused: it was given up.
        """
        context = contextvars.copy_context()
        try:
            return await asyncio.wrap_future(self.threads.submit(context.run, work, *args))
        except asyncio.CancelledError:
            self.give_up()
            raise
        except GivenUp as exc:
            raise Refused("HostCallError", "The call is over.", "cancelled") from exc


current: contextvars.ContextVar[Aside | None] = contextvars.ContextVar("current", default=None)
"""Set while a call is done whose arguments are large."""


async def aside(work: Callable[..., T], *args: Any) -> T:
    """Do work on a call's arguments: here, if they are small, and else in a thread."""
    beside = current.get()
    return work(*args) if beside is None else await beside.do(work, *args)


def look_up() -> None:
    """Go on with work on arguments, if somebody still waits. To be called every so often.

    Raises:
        GivenUp: nobody does.
    """
    beside = current.get()
    if beside is not None and beside.is_over:
        raise GivenUp("the call is over")
