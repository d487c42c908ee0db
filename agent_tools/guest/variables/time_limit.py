"""The time that pickling, or making, one variable may take."""

import signal


class TooSlow(BaseException):
    """A variable has exceeded its time limit."""


class TimeLimit:
    """Raises TooSlow within a block that takes longer than `seconds`, never behind it. `ring` handles the alarm."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def ring(_number: int, _frame: object) -> None:
    """Handle SIGALRM."""
    raise TooSlow
