"""A host function as the runtime knows it: something to call, and its policy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union

from agent_tools.errors import AgentToolsError

Status = Literal["ok", "error", "timeout", "cancelled", "denied", "refused"]
Keywords = dict[str, Any]
"""The keyword arguments of a call."""


@dataclass(frozen=True)
class Policy:
    """The policy of one function. None: as `CallLimits` says."""

    timeout: float | None = None
    """Seconds one call may take."""
    max_calls: int | None = None
    """Calls in one run."""
    concurrency: int | None = None
    """Calls at the same time."""
    approve: Callable[[CallRequest], Union[bool, Awaitable[bool]]] | None = None
    """Asked before each call, sync or async; the run's clock stands still meanwhile."""


@dataclass(frozen=True)
class CallRequest:
    """A call as an approval sees it."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class ArgumentError(AgentToolsError):
    """The arguments do not fit the function; the message says which."""


class HostFunction(Protocol):
    """A function that the guest can call."""

    policy: Policy

    async def call(self, args: tuple[Any, ...], kwargs: Keywords) -> Any:
        """Check the arguments and do the work.

        Raises:
            ArgumentError: they do not fit.
        """
        ...


class Clock(Protocol):
    """The time limit of a run."""

    def hold(self) -> None:
        """Let it stand still."""
        ...

    def go(self) -> None:
        """Let it go on."""
        ...


@dataclass(eq=False)  # not frozen: who raises it again notes the way it went
class Refused(AgentToolsError):
    """A call that is answered with an error of ours, by the name it has in the guest."""

    kind: str
    message: str
    status: Status = "refused"


class Escaped(AgentToolsError):
    """A host function raised, as its cause, what would have ended the event loop, and whoever runs it, too."""


async def called(function: HostFunction, args: tuple[Any, ...], kwargs: Keywords) -> Any:
    """Call a function.

    Raises:
        Escaped: it left as a program does, by SystemExit or the like.
    """
    try:
        return await function.call(args, kwargs)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exc:
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the person's own
        raise Escaped from exc


def failure(exc: BaseException) -> tuple[str, str]:
    """Return the name and the text of what a function raised; making the text may fail itself."""
    cause = exc.__cause__ or exc if isinstance(exc, Escaped) else exc
    try:
        return type(cause).__name__, str(cause)
    except Exception as again:  # noqa: BLE001  (code of the function's)
        return type(cause).__name__, f"its text could not be made ({type(again).__name__})"
