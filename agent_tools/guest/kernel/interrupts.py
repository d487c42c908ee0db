"""Interrupts of a cell: SIGINT, and where it is raised.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

from ..gvisor import is_gvisor
from .cell_processes import cell_processes

AT_ONCE = 0.001  # seconds until code ends that was interrupted before it began
AGAIN = 0.05  # seconds until the timer rings again: a signal right before a system call does not end this
INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)

IsUsers = Callable[[FrameType | None], bool]


class _State:
    """The interrupts of the main thread: at most one cell at a time."""

    is_users: IsUsers | None = None  # of the cell whose code interrupts reach
    was_noted = False
    raised = 0  # interrupts, in the code of this request
    rings = False
    take_alarms: Callable[[], object] = staticmethod(lambda: None)
    shields = 0  # of the main thread: an interrupt is raised in no other


def ignore() -> None:
    """Ignore interrupts: there is nothing to interrupt. One that was to be raised soon is not for the next cell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _State.rings:
        signal.setitimer(signal.ITIMER_REAL, 0)
    _State.was_noted = _State.rings = False
    _State.raised, _State.shields, _State.is_users = 0, 0, None


def alarms_by(take: Callable[[], object]) -> None:
    """Let `take` see to it that the signal of the timer comes here, and not to a handler of the code."""
    _State.take_alarms = staticmethod(take)


def expect() -> None:
    """Note interrupts: they are meant for the code that is about to run."""
    signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def reaching_code(is_users: IsUsers) -> Iterator[None]:
    """Raise interrupts in the code that runs within; the kernel itself ends code that awaits.

    `is_users` tells the user's frames from a library's. A shield around what runs the code does not cover the code.
    """
    is_first = not _State.is_users and signal.getsignal(signal.SIGINT) is _interrupt
    is_main, shields = is_main_thread(), _State.shields
    try:
        if is_first:
            _State.is_users = is_users
        if is_main:
            _State.shields = 0
        if _State.was_noted and not _State.shields:  # checked last, so that no interrupt is noted and never raised
            raise_soon()
        yield
    finally:
        if is_main:
            _State.shields = shields
        if is_first:
            _State.is_users = None


@contextmanager
def reaching_end() -> Iterator[None]:
    """Raise interrupts in what runs at the end of a cell, also of one that awaited, as in its code."""
    before = signal.getsignal(signal.SIGINT)
    if not is_main_thread() or before == signal.SIG_IGN:  # between requests
        yield
        return
    expect()
    try:
        with reaching_code(lambda _: True):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


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


def shielded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that no interrupt leaves half done."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with shield:
            value = function(*args, **kwargs)
        if _State.rings and is_main_thread():
            signal.raise_signal(signal.SIGALRM)  # which is to come soon: no later line may run
        return value

    return run


def shield_forks() -> None:
    """Let no interrupt meet the callbacks of a fork, where Python ignores exceptions: a lock would stay locked."""
    os.fork = shielded(os.fork)
    os.register_at_fork(after_in_child=_expose)


def let_be_nudged() -> None:
    """Let PID 1's nudge end a system call, so that Python handles an interrupt that came right before this.

    Under gVisor a SIGHUP does nothing more: the kernel gets one where its code stops a program and another one ends.
    """
    for number in (signal.SIGURG, signal.SIGHUP) if is_gvisor() else (signal.SIGURG,):
        signal.signal(number, _nothing)


def _nothing(*_: object) -> None:
    pass


def _expose() -> None:
    _State.shields, _State.was_noted, _State.rings = 0, False, False


def is_shielded() -> bool:
    """Return whether an interrupt has to wait; if so, note it."""
    if _State.shields:
        _State.was_noted = True
    return bool(_State.shields)


def note() -> None:
    """Note an interrupt that came before the code of its cell: it is raised there."""
    _State.was_noted = True


def raised() -> int:
    """Return how often the code of this request was interrupted."""
    return _State.raised


def note_raised() -> None:
    """Note that an interrupt is about to be raised in the code, and interrupt the processes that it waits for."""
    _State.raised += 1
    with contextlib.suppress(OSError):  # of code that has used up its descriptors: it is interrupted all the same
        cell_processes.interrupt()


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
    """Return whether `raise_soon` has set the timer, and stop it: it has rung, or is not needed any more."""
    rings, _State.rings = _State.rings, False
    if rings:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return rings


def raise_soon(seconds: float = AT_ONCE) -> None:
    """Interrupt the cell after a time in seconds, unless it has ended by then."""
    _State.was_noted, _State.rings = False, True
    _State.take_alarms()
    signal.setitimer(signal.ITIMER_REAL, max(seconds, AT_ONCE), AGAIN)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise in user code; note an interrupt that comes before or after it."""
    if not _State.is_users:
        _State.was_noted = True
    elif not is_shielded() and (not _State.raised or _State.is_users(frame)):
        note_raised()
        raise KeyboardInterrupt


def raise_unraisable() -> None:
    """Let an interrupt come again that met a finalizer, where Python ignores exceptions."""
    stock = sys.unraisablehook

    def hook(ignored: Any) -> None:
        if issubclass(ignored.exc_type, INTERRUPTIONS) and _State.raised and is_main_thread():
            _State.raised -= 1  # so that it ends whatever runs by then
            raise_soon()
        else:
            stock(ignored)

    sys.unraisablehook = hook


def is_main_thread() -> bool:
    """Return whether this is the thread in which signals are handled."""
    return threading.current_thread() is threading.main_thread()
