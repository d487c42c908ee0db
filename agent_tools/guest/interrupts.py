"""SIGINT around a cell: ignored between requests, kept for the code while its request is handled, raised in the code.

The stock kernel lets it raise wherever a request is being handled, and then the request may end without a reply.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 0.001  # seconds after which code ends that was interrupted before it began

_was_noted = False


def ignore() -> None:
    """From now on there is nothing to interrupt."""
    global _was_noted
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _was_noted = False


def expect() -> None:
    """From now on an interrupt is meant for the code that is about to run."""
    signal.signal(signal.SIGINT, _note)


@contextmanager
def reaching_code() -> Iterator[None]:
    """Around code: what interrupts there are raise in it. One that awaits, the kernel ends in its own way."""
    global _was_noted
    if _was_noted:
        _was_noted = False
        signal.setitimer(signal.ITIMER_REAL, AT_ONCE)
    if signal.getsignal(signal.SIGINT) is not _note:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the code has set one of its own
            expect()


def _note(_number: int, _frame: object) -> None:
    global _was_noted
    _was_noted = True
