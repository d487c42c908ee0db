"""Admission of calls, decided when only the name of a call has been read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from agent_tools.limits import CallLimits
from agent_tools.runtime.host_calls.function import CallRefused, HostFunction

REFUSAL_BYTES = 64 * 1024  # bytes; a longer refused call counts once for each of these


class Admission:
    """The calls of one run, counted. For any thread.

    Attributes:
        host_seconds: seconds that its functions took together.
        open: calls that have not ended.
        open_bytes: the bytes of their messages.
        refusals: refused calls; long ones count more than once.
    """

    def __init__(self, functions: Mapping[str, HostFunction], limits: CallLimits) -> None:
        self._functions = functions
        self._limits = limits
        self._lock = threading.Lock()
        self._made = 0
        self._made_of: Counter[str] = Counter()
        self.host_seconds = 0.0
        self.open = 0
        self.open_bytes = 0
        self.refusals = 0

    def check(self, name: str) -> None:
        """Check whether one more call may be made.

        Raises:
            CallRefused: it may not.
        """
        limits, policy = self._limits, getattr(self._functions.get(name), "policy", None)
        if policy is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise CallRefused("HostCallNotFound", f"There is no host function {name!r}. Known: {known}.")
        if self._made >= limits.max_calls:
            raise CallRefused("HostCallBudgetExceeded", f"All {limits.max_calls} host calls of this run are used up.")
        if policy.max_calls is not None and self._made_of[name] >= policy.max_calls:
            raise CallRefused("HostCallBudgetExceeded", f"{name} may be called {policy.max_calls} times in a run.")
        if self.open >= limits.max_pending + limits.max_concurrent:
            raise CallRefused("HostCallBudgetExceeded", f"More than {limits.max_pending} host calls are waiting.")
        if self.host_seconds >= limits.max_host_seconds:
            raise CallRefused("HostCallBudgetExceeded", f"The {limits.max_host_seconds:g} s of host time are used up.")

    def begin(self, name: str, size: int) -> None:
        """Count a call that begins.

        Raises:
            CallRefused: it may not be made.
        """
        with self._lock:
            self.check(name)
            self._made += 1
            self._made_of[name] += 1
            self.open += 1
            self.open_bytes += size

    def end(self, size: int) -> None:
        """Count a call that has ended."""
        with self._lock:
            self.open -= 1
            self.open_bytes -= size

    def refuse(self, size: int) -> None:
        """Count a call that was refused."""
        with self._lock:
            self.refusals += 1 + size // REFUSAL_BYTES

    @property
    def is_full(self) -> bool:
        """True while no more messages should be read."""
        return self.open_bytes > self._limits.max_open_bytes or self.refusals > self._limits.max_refusals
