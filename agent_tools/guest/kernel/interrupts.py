"""Interrupts of a cell: SIGINT, the timer of the time limit, and the end of the cell's forks.

SIGINT is ignored between requests, noted while a request is handled, and raised in user code. The stock kernel lets it
raise wherever a request is handled, and then the request may end without a reply. Two more places are spared: a
`shield`, in which half-done work would break the kernel, and the making of an interrupted cell's traceback and reply.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..processes import kill_forks

AT_ONCE = 0.001  # seconds until code ends that was interrupted before it began

IsUsers = Callable[[FrameType | None], bool]


class _State:
    """The interrupts of the main thread: at most one cell at a time."""

    is_users: IsUsers | None = None  # of the cell whose code interrupts reach
    was_noted = False
    raised = 0  # interrupts, in the code of this request
    rings = False
    shields = 0  # of the main thread: an interrupt is raised in no other


def ignore() -> None:
    """Ignore interrupts: there is nothing to interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _State.was_noted = _State.rings = False
    _State.raised, _State.shields, _State.is_users = 0, 0, None


def expect() -> None:
    """Note interrupts: they are meant for the code that is about to run."""
    signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def reaching_code(is_users: IsUsers) -> Iterator[None]:
    """Raise interrupts in the code that runs within; the kernel itself ends code that awaits.

    `is_users` tells the user's frames from a library's.
    """
    if _State.is_users or signal.getsignal(signal.SIGINT) is not _interrupt:
        if _State.was_noted:
            raise_soon()
        yield
        return
    _State.is_users = is_users
    try:
        if _State.was_noted:  # checked last, so that no interrupt is noted and never raised
            raise_soon()
        yield
    finally:
        _State.is_users = None


class Shield:
    """Delays interrupts while it is entered; they are raised soon after it was left."""

    def __enter__(self) -> None:
        if is_main_thread():
            _State.shields += 1

    def __exit__(self, *_: object) -> None:
        if not is_main_thread():
            return
        _State.shields = max(0, _State.shields - 1)
        if _State.was_noted and not _State.shields:
            raise_soon()


shield = Shield()


def is_shielded() -> bool:
    """Return whether an interrupt has to wait; if so, note it."""
    if _State.shields:
        _State.was_noted = True
    return bool(_State.shields)


def raised() -> int:
    """Return how often the code of this request was interrupted."""
    return _State.raised


def note_raised() -> None:
    """Note that an interrupt is raised in the code."""
    _State.raised += 1


@contextmanager
def ending_the_cell() -> Iterator[None]:
    """Raise an interrupt again that a library within has handled by itself: no later line of the cell may run."""
    before = _State.raised
    try:
        yield
    except Exception:
        if _State.raised == before:
            raise
    if _State.raised > before:
        raise KeyboardInterrupt


def rings() -> bool:
    """Return whether `raise_soon` set the timer that has rung; True once for each time."""
    rings, _State.rings = _State.rings, False
    return rings


def raise_soon(seconds: float = AT_ONCE) -> None:
    """Interrupt the cell after a time in seconds, unless it has ended by then."""
    _State.was_noted, _State.rings = False, True
    signal.setitimer(signal.ITIMER_REAL, max(seconds, AT_ONCE))


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise in user code; note an interrupt that comes before or after it."""
    if not _State.is_users:
        _State.was_noted = True
    elif not is_shielded() and (not _State.raised or _State.is_users(frame)):
        note_raised()
        raise KeyboardInterrupt


def is_main_thread() -> bool:
    """Return whether this is the thread in which signals are handled."""
    return threading.current_thread() is threading.main_thread()


# The time limit inside the kernel: an interval timer that interrupts the cell as Ctrl-C would.
#
# A process has one such timer, and code may use it, too: `signal.alarm`. A signal before the time limit belongs to the
# code: it goes to the handler that this cell or an earlier one has set.


EARLY = 0.005  # seconds that a timer may ring before its time by another clock


class Countdown:
    """Interrupts a cell at its time limit.

    The request's metadata have the limit. Code can disarm this timer; PID 1 and the host have their own.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ends = 0.0
        self._handler: Any = signal.SIG_DFL  # of the code's alarms

    def start(self) -> None:
        """Arm the timer for the request that is about to run; a cell that a thread runs has no timer."""
        if not is_main_thread():
            return
        timeout = self._shell.kernel.get_parent("shell").get("metadata", {}).get("timeout")
        has_timeout = isinstance(timeout, (int, float)) and timeout > 0
        handler = signal.getsignal(signal.SIGALRM)
        if handler != self.expire and (has_timeout or handler is signal.SIG_DFL):  # py rings, too
            self._handler = handler
            signal.signal(signal.SIGALRM, self.expire)
        self._ends = 0.0
        if has_timeout:
            self._ends = time.monotonic() + timeout
            signal.setitimer(signal.ITIMER_REAL, timeout)

    def cancel(self) -> None:
        """Disarm the timer."""
        if is_main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)

    def expire(self, signum: int, frame: FrameType | None) -> None:
        """Act as SIGINT would now: raise KeyboardInterrupt in a plain cell, cancel one that awaits."""
        left = self._ends - time.monotonic()
        if not rings() and left > EARLY and self._handler is not signal.SIG_DFL:
            self._ring(signum, frame, left)
            return
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and not self._shell.is_held():
            interrupt(signal.SIGINT, frame)

    def _ring(self, signum: int, frame: FrameType | None, left: float) -> None:
        """Call the code's own handler, and count down the rest of the time unless the code has set another alarm."""
        if signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, left)
        if callable(self._handler):
            self._handler(signum, frame)


# Forks of a cell: an interrupt or a time limit ends them, as Ctrl-C in a terminal does.
#
# Programs that the cell started live on, and so do forks of earlier cells.


TICKS = os.sysconf("SC_CLK_TCK")  # of a second, in which the kernel tells when a process started
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)


class CellForks:
    """The forks of the cell that runs."""

    def __init__(self) -> None:
        self._first: int | None = None  # ticks from the machine's start to the first fork; None: there is none
        os.register_at_fork(before=self._note)

    def begin(self) -> None:
        """Begin a cell."""
        self._first = None

    def end(self, error: BaseException | None) -> None:
        """End a cell; if it was interrupted, kill what it has forked, and leave no zombies of it."""
        if self._first is None or not isinstance(error, INTERRUPTIONS):
            return
        killed = kill_forks(self._first)
        if "multiprocessing" in sys.modules:  # so that it notices the end of its processes
            sys.modules["multiprocessing"].active_children()
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _note(self) -> None:
        if self._first is None:
            self._first = int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)
