"""The seam to whatever answers the calls of a session: `HostCalls` here, or a relay to another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from agent_tools.execution import HostCall, Omitted
from agent_tools.limits import CallLimits
from agent_tools.runtime.host_calls.function import Clock, HostFunction
from agent_tools.runtime.host_calls.wire import Wire

TakeOver = Callable[[], Sequence[HostCall | Omitted]]
"""Gives the calls that are over by now, each once."""


class ServesCalls(Protocol):
    """Answers the calls of one session. `HostCalls` says what each does."""

    @property
    def limits(self) -> CallLimits:
        """The bounds on its calls."""
        ...

    @property
    def is_calling(self) -> bool:
        """True while this very task or thread works on a call of this session."""
        ...

    def sibling(self) -> ServesCalls:
        """Return the same functions under the same limits, for another session."""
        ...

    def add(self, functions: Mapping[str, HostFunction], *, others: bool = True) -> None:
        """Serve further functions, from now on; without `others`, these alone."""
        ...

    def serve(self, wire: Wire) -> None:
        """Take the calls of another kernel."""
        ...

    def run(self, clock: Clock) -> AbstractContextManager[TakeOver]:
        """Around a run: calls are answered."""
        ...

    def close(self) -> None:
        """Hang up and end what is running."""
        ...
