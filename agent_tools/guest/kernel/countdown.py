"""The time limit of a cell as seen from inside: an interval timer that interrupts the cell as Ctrl-C would.

There is one timer of this kind in a process, and code may use it, too: `signal.alarm`. A signal that comes before the
time is up is the code's: it goes to the handler that a cell has set, in that cell or in an earlier one.
"""

import signal
import time
from types import FrameType
from typing import Any

from . import interrupts

EARLY = 0.005  # seconds that a timer may ring before its time by another clock


class Countdown:
    """Interrupts a cell whose time is up.

    It is armed from the request's metadata, so the user's code gains no line. Code can disarm it; the host has its own.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ends = 0.0
        self._handler: Any = signal.SIG_DFL  # of the code's alarms

    def start(self) -> None:
        """Arm the timer for the request that is about to run; a cell that a thread runs has no time of its own."""
        if not interrupts.is_main_thread():
            return
        timeout = self._shell.kernel.get_parent("shell").get("metadata", {}).get("timeout")
        has_timeout = isinstance(timeout, (int, float)) and timeout > 0
        handler = signal.getsignal(signal.SIGALRM)
        if handler != self.expire and (has_timeout or handler is signal.SIG_DFL):  # interrupts.py rings, too
            self._handler = handler
            signal.signal(signal.SIGALRM, self.expire)
        self._ends = 0.0
        if has_timeout:
            self._ends = time.monotonic() + timeout
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def cancel(self) -> None:
        """Disarm the timer."""
        if interrupts.is_main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)

    def expire(self, signum: int, frame: FrameType | None) -> None:
        """Do what SIGINT would do now: KeyboardInterrupt in a plain cell, cancellation in an awaiting one."""
        left = self._ends - time.monotonic()
        if not interrupts.rings() and left > EARLY and self._handler is not signal.SIG_DFL:
            self._ring(signum, frame, left)
            return
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and not self._shell.is_held():
            interrupt(signal.SIGINT, frame)

    def _ring(self, signum: int, frame: FrameType | None, left: float) -> None:
        """Give the code its alarm, and count down the rest of its time unless it has set another one."""
        if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, left)
        if callable(self._handler):
            self._handler(signum, frame)
