"""The interface of a host function to the runtime: a call, and a policy."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

from agent_tools.errors import AgentToolsError, InvalidParams

if TYPE_CHECKING:
    import asyncio

Status = Literal["ok", "error", "timeout", "cancelled", "denied", "refused"]
Keywords = dict[str, Any]
"""The keyword arguments of a call."""


@dataclass(frozen=True)
class Policy:
    """The policy of one function. None means the value of `CallLimits`.

    Raises:
        InvalidParams: a value is unusable.
    """

    timeout: float | None = None
    """Seconds one call may take."""
    max_calls: int | None = None
    """Calls in one run."""
    concurrency: int | None = None
    """Calls at the same time."""
    approve: Callable[[CallRequest], Union[bool, Awaitable[bool]]] | None = None
    """Called before each call, sync or async; the run's time limit is paused meanwhile."""

    def __post_init__(self) -> None:
        _check("timeout", self.timeout, 0.001, "seconds as a positive number", (int, float))
        _check("max_calls", self.max_calls, 0, "a whole number", int)
        _check("concurrency", self.concurrency, 1, "a whole number of at least 1", int)
        if self.approve is not None and not callable(self.approve):
            raise InvalidParams(f"approve={self.approve!r:.80} is not usable: give a function of a CallRequest.")


def _check(name: str, value: object, least: float, wanted: str, kinds: type | tuple[type, ...]) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:  # type: ignore[operator]
        raise InvalidParams(f"{name}={value!r:.80} is not usable: give {wanted}.")


@dataclass(frozen=True)
class CallRequest:
    """A call as an approval sees it."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Approve = Callable[[CallRequest], Union[bool, Awaitable[bool]]]


serving_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("serving_loop", default=None)
"""The event loop whose tasks a run's host calls become: the loop of the caller that awaits the run."""


class ArgumentError(AgentToolsError):
    """The arguments do not match the function; the message says which."""


class HostFunction(Protocol):
    """A function that the guest can call."""

    policy: Policy

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Check the arguments and run the function.

        Raises:
            ArgumentError: they do not match.
        """
        ...


class Clock(Protocol):
    """The time limit of a run."""

    def hold(self) -> None:
        """Pause the time limit."""
        ...

    def go(self) -> None:
        """Continue the time limit."""
        ...


@dataclass(eq=False)  # not frozen: raising it again sets its traceback
class CallRefused(AgentToolsError):
    """A call that is answered with an error of the runtime, under its name in the guest."""

    kind: str
    message: str
    status: Status = "refused"


def only_keywords(name: str, args: tuple[Any, ...], kwargs: Keywords) -> Keywords:
    """Return a call's arguments for a function whose schema names them; None stands for one that is not given.

    Raises:
        ArgumentError: there are arguments without a name.
    """
    if args:
        raise ArgumentError(f"{name} takes keyword arguments only.")
    return {key: value for key, value in kwargs.items() if value is not None}
