"""The arguments of a call, read within a budget: small ones where the call is done, others in a thread beside it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_tools.guest.wire.budget import Budget, GivenUp
from agent_tools.guest.wire.values import Rich, decode
from agent_tools.runtime.host_calls.function import CallRefused

SMALL_BYTES = 32 * 1024  # of a message whose arguments are read and checked in the caller's event loop

Arguments = tuple[list[Any], dict[str, Any]]


@dataclass
class IncomingCall:
    """A call as it came."""

    number: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    attachments: list[bytes]
    size: int
    begun: float = 0.0
    preview: str = ""


class CallReading:
    """Reads the arguments of one run's calls, in its event loop. `most` is what they may take together, in bytes."""

    def __init__(self, rich: Rich | None, threads: Executor, most: int) -> None:
        self._rich = rich
        self._threads = threads
        self._most = most
        self._taken = 0
        self._freed = asyncio.Event()
        self._under_way: set[Aside] = set()

    def give_up(self) -> None:
        """Have what is being read end soon. For any thread."""
        for beside in list(self._under_way):
            beside.give_up()

    @asynccontextmanager
    async def arguments(self, call: IncomingCall) -> AsyncIterator[Arguments]:
        """Large arguments; what they take is free again afterwards.

        Raises:
            CallRefused: they cannot be read.
        """
        beside = Aside(self._threads)
        budget = Budget(call.size, lambda: beside.is_over)
        await self._room(budget.limit)
        taken = budget.limit
        self._under_way.add(beside)
        token = current.set(beside)
        try:
            found = await beside.do(_arguments, call, self._rich, budget)
            self._free(taken - budget.made)
            taken = budget.made
            yield found
        finally:
            beside.give_up()
            self._under_way.discard(beside)
            current.reset(token)
            self._free(taken)

    def small(self, call: IncomingCall) -> Arguments | None:
        """The arguments, if that is a matter of microseconds.

        Raises:
            CallRefused: they cannot be read.
        """
        if call.size > SMALL_BYTES:
            return None
        try:
            return _arguments(call, _too_rich, Budget(call.size))
        except _TooRich:
            return None

    async def _room(self, size: int) -> None:
        """Wait until so many bytes may be taken; the first may always."""
        while self._taken and self._taken + size > self._most:
            self._freed.clear()
            await self._freed.wait()
        self._taken += size

    def _free(self, size: int) -> None:
        self._taken -= size
        self._freed.set()


class _TooRich(Exception):
    """A frame, an array or a picture: not a matter of microseconds."""


def _too_rich(*_: Any) -> Any:
    raise _TooRich


def _arguments(call: IncomingCall, rich: Rich | None, budget: Budget) -> Arguments:
    args, kwargs = read(lambda: decode([call.args, call.kwargs], call.attachments, rich, budget))
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise CallRefused(
            "HostCallArgumentError", "The keyword arguments must be an object whose names are text.", "error"
        )
    return args, kwargs


def read(decoded: Callable[[], Any]) -> Any:
    """Return what was decoded.

    Raises:
        CallRefused: it cannot be.
    """
    try:
        return decoded()
    except (ValueError, TypeError, ArithmeticError) as exc:
        raise CallRefused("HostCallArgumentError", f"The arguments cannot be read: {exc}", "error") from exc


# Work on a call's arguments that may take long: done in a thread beside the event loop, and given up with the call.


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
            CallRefused: it was given up.
        """
        context = contextvars.copy_context()
        try:
            return await asyncio.wrap_future(self.threads.submit(context.run, work, *args))
        except asyncio.CancelledError:
            self.give_up()
            raise
        except GivenUp as exc:
            raise CallRefused("HostCallError", "The call is over.", "cancelled") from exc


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
