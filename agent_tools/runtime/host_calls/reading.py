"""Decode the arguments of a call within a budget: small ones in the event loop, others in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.budget import Budget
from agent_tools.guest.wire.values import Rich, decode
from agent_tools.runtime.host_calls.aside import Aside, current
from agent_tools.runtime.host_calls.function import CallRefused

SMALL_BYTES = 32 * 1024  # of a message whose arguments are read and checked in the caller's event loop

Arguments = tuple[list[Any], dict[str, Any]]


@dataclass
class IncomingCall:
    """A call as received."""

    number: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    attachments: list[bytes]
    size: int
    begun: float = 0.0
    preview: str = ""


class CallReading:
    """Decodes the arguments of one run's calls, in its event loop. `most` is the limit for all of them, in bytes."""

    def __init__(self, rich: Rich | None, threads: Executor, most: int) -> None:
        self._rich = rich
        self._threads = threads
        self._most = most
        self._taken = 0
        self._freed = asyncio.Event()
        self._under_way: set[Aside] = set()

    def cancel_decoding(self) -> None:
        """Cancel all decoding. Any thread may call it."""
        for beside in list(self._under_way):
            beside.over.set()

    @asynccontextmanager
    async def arguments(self, call: IncomingCall) -> AsyncIterator[Arguments]:
        """Yield decoded large arguments; their memory is released from the budget afterwards.

        Raises: CallRefused: they cannot be read.
        """
        beside = Aside(self._threads)
        budget = Budget(call.size, beside.over.is_set)
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
            beside.over.set()
            self._under_way.discard(beside)
            current.reset(token)
            self._free(taken)

    def small(self, call: IncomingCall) -> Arguments | None:
        """Return the arguments if decoding takes only microseconds.

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
        """Wait until the budget has room for `size` bytes; a single call always has."""
        while self._taken and self._taken + size > self._most:
            self._freed.clear()
            await self._freed.wait()
        self._taken += size

    def _free(self, size: int) -> None:
        self._taken -= size
        self._freed.set()


class _TooRich(Exception):
    """A frame, an array or a picture, which takes too long to decode here."""


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
    """Decode the arguments.

    Raises:
        CallRefused: they cannot be decoded.
    """
    try:
        return decoded()
    except (ValueError, TypeError, ArithmeticError) as exc:
        raise CallRefused("HostCallArgumentError", f"The arguments cannot be read: {exc}", "error") from exc
