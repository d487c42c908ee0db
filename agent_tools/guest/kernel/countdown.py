"""The time limit inside the kernel: an interval timer that interrupts the cell as Ctrl-C would.

A process has one such timer, and code may use it, too: `signal.alarm`. A signal before the time limit belongs to the
code: it goes to the handler that this cell or an earlier one has set.
"""

import signal
import time
from types import FrameType
from typing import Any

from . import interrupts

EARLY = 0.005  # seconds that a timer may ring before its time by another clock


class Countdown:
    """Interrupts a cell at its time limit.

    The request's metadata have the limit. Code can disarm this timer; PID 1 and the host have their own.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ends = 0.0
        self._handler: Any = signal.SIG_DFL  # of the code's alarms
        interrupts.alarms_by(self._take_alarms)

    def start(self) -> None:
        """Arm the timer for the request that is about to run; a cell that a thread or another cell runs has none."""
        if not interrupts.is_main_thread() or self._shell.depth > 1:
            return
        if interrupts.rings():
            interrupts.note()
        timeout = self._shell.kernel.get_parent("shell").get("metadata", {}).get("timeout")
        has_timeout = isinstance(timeout, (int, float)) and timeout > 0
        if has_timeout or signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:  # py rings, too
            self._take_alarms()
        self._ends = 0.0
        if has_timeout:
            self._ends = time.monotonic() + timeout
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def _take_alarms(self) -> None:
        handler = signal.getsignal(signal.SIGALRM)
        if handler != self.expire:
            self._handler = handler
            signal.signal(signal.SIGALRM, self.expire)

    def cancel(self) -> None:
        """Disarm the timer, unless the cell ran within another one, or without a limit: then it is the code's."""
        if not interrupts.is_main_thread() or self._shell.depth:
            return
        if interrupts.rings():
            interrupts.raise_soon()
        elif self._ends:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def expire(self, signum: int, frame: FrameType | None) -> None:
        """Act as SIGINT would now: raise KeyboardInterrupt in a plain cell, cancel one that awaits."""
        left, is_interrupt = self._ends - time.monotonic(), interrupts.rings()
        if not is_interrupt and self._handler is not signal.SIG_DFL and (not self._ends or left > EARLY):
            self._ring(signum, frame, left)
            return
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and (is_interrupt or not self._shell.is_held()):
            interrupt(signal.SIGINT, frame)

    def _ring(self, signum: int, frame: FrameType | None, left: float) -> None:
        """Call the code's own handler, and count down the rest of the time unless the code has set another alarm."""
        if self._ends and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, left)
        if callable(self._handler):
            self._handler(signum, frame)
