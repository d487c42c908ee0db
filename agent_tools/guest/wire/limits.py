"""The host's limits on a message, told to the guest where they are not the usual ones. Standard library only.

One environment variable of PID 1 holds two numbers of bytes: of a kernel's message, and of a host call's. Honest code
keeps to them, so that it never meets the host's own; what the guest does with them binds the host to nothing.
"""

from collections.abc import MutableMapping
from typing import NamedTuple

VARIABLE = "AGENT_TOOLS_MESSAGE_LIMITS"
USUAL = 16 * 1024 * 1024


class MessageLimits(NamedTuple):
    """The largest messages the host takes, in bytes."""

    kernel: int = USUAL
    call: int = USUAL

    def told(self) -> dict[str, str]:
        """Return the variable that tells them; nothing for the usual ones."""
        return {} if self == MessageLimits() else {VARIABLE: f"{self.kernel:d},{self.call:d}"}


def heard(environ: MutableMapping[str, str]) -> MessageLimits:
    """Take the variable out of the environment, so that code does not see it, and return what it tells."""
    kernel, comma, call = environ.pop(VARIABLE, "").partition(",")
    return MessageLimits(int(kernel), int(call)) if comma else MessageLimits()
