"""The host's limits on a message, which honest code keeps within; the host enforces its own.

One environment variable of PID 1 holds two numbers of bytes: the limits of a kernel's message and of a host call's.
"""

from collections.abc import MutableMapping
from typing import NamedTuple

LIMITS_VARIABLE = "AGENT_TOOLS_MESSAGE_LIMITS"
DEFAULT_LIMIT = 16 * 1024 * 1024


class MessageLimits(NamedTuple):
    """The largest messages the host takes, in bytes."""

    kernel: int = DEFAULT_LIMIT
    call: int = DEFAULT_LIMIT

    def variables(self) -> dict[str, str]:
        """Return the environment variable for PID 1; none for the defaults."""
        return {} if self == MessageLimits() else {LIMITS_VARIABLE: f"{self.kernel:d},{self.call:d}"}

    @classmethod
    def pop_from(cls, environ: MutableMapping[str, str]) -> "MessageLimits":
        """Remove the variable from an environment, so that user code does not see it, and return its limits."""
        kernel, comma, call = environ.pop(LIMITS_VARIABLE, "").partition(",")
        return cls(int(kernel), int(call)) if comma else cls()
