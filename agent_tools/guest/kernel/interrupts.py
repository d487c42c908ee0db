"""SIGINT around a cell: ignored between requests, kept for the code while its request is handled, raised in the code.

The stock kernel lets it raise wherever a request is being handled, and then the request may end without a reply. Two
more places are spared: a `shield`, in which half-done work would break something for good, and, once the code has been
interrupted, the telling of it: a second interrupt there would cost the cell its traceback, or its reply.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AT_ONCE = 0.001  # seconds after which code ends that was interrupted before it began

IsUsers = Callable[[FrameType | None], bool]


class _State:
    """The interrupts of the main thread: at most one cell at a time."""

    is_users: IsUsers | None = None  # of the cell whose code interrupts reach
    was_noted = False
    was_raised = False
    rings = False
    shields = 0  # of the main thread: an interrupt is raised in no other


def ignore() -> None:
    """Ignore interrupts from now on: there is nothing to interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _State.was_noted = _State.was_raised = _State.rings = False
    _State.shields, _State.is_users = 0, None


def expect() -> None:
    """Keep interrupts from now on: they are meant for the code that is about to run."""
    signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def reaching_code(is_users: IsUsers) -> Iterator[None]:
    """Let interrupts raise in the code that runs within; one that awaits, the kernel ends in its own way.

    `is_users` tells the user's frames from a library's.
    """
    if _State.is_users or signal.getsignal(signal.SIGINT) is not _interrupt:
        if _State.was_noted:
            _raise_soon()
        yield
        return
    _State.is_users = is_users
    try:
        if _State.was_noted:  # looked at last, so that none is noted and never raised
            _raise_soon()
        yield
    finally:
        _State.is_users = None


class Shield:
    """Keeps interrupts while it is entered; they are raised soon after it was left."""

    def __enter__(self) -> None:
        if is_main_thread():
            _State.shields += 1

    def __exit__(self, *_: object) -> None:
        if not is_main_thread():
            return
        _State.shields = max(0, _State.shields - 1)
        if _State.was_noted and not _State.shields:
            _raise_soon()


shield = Shield()


def is_shielded() -> bool:
    """Return whether an interrupt has to wait; if so it is noted."""
    if _State.shields:
        _State.was_noted = True
    return bool(_State.shields)


def was_raised() -> bool:
    """Return whether the code that runs was interrupted."""
    return _State.was_raised


def rings() -> bool:
    """Return whether the timer that has rung was set here, once for each time that it was."""
    rings, _State.rings = _State.rings, False
    return rings


def _raise_soon() -> None:
    _State.was_noted, _State.rings = False, True
    signal.setitimer(signal.ITIMER_REAL, AT_ONCE)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise in the code that interrupts reach; keep one that comes before or after it."""
    if not _State.is_users:
        _State.was_noted = True
    elif not is_shielded() and (not _State.was_raised or _State.is_users(frame)):
        _State.was_raised = True
        raise KeyboardInterrupt


def is_main_thread() -> bool:
    """Return whether this is the thread in which signals are handled."""
    return threading.current_thread() is threading.main_thread()
