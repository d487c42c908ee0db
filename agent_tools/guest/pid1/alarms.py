"""The times at which a kernel is to be interrupted and killed, and interrupts that come before it runs any code.

A kernel ignores interrupts until it runs code. One that the host orders may come in between: the run is armed, and its
request on the way, or waiting while a copy of the kernel is left. Such an interrupt is kept here and sent as soon as
the kernel ignores it no more, unless the run is over by then.
"""

import signal
import time
from collections.abc import Iterator

from ..processes import ignores
from ..wire.alarm import AlarmReader

TRY_EVERY = 0.005  # seconds between two looks whether an interrupt can be sent
Times = list[tuple[float, int]]
"""Monotonic times and signals, in order."""


class Alarms:
    """The signals that are due to the kernel of one supervisor."""

    def __init__(self) -> None:
        self._ordered: Times = []
        self._shown: Times = []  # by the page of memory, which knows nothing of the orders
        self._page: AlarmReader | None = None
        self._wanted: int | None = None  # the run that is to be interrupted, by the number it was armed by

    def read_page(self, descriptor: int) -> None:
        """Look at the host's page from now on, if it has one and was not known."""
        if self._page is None:
            self._page = AlarmReader(descriptor)

    def look_at_page(self) -> None:
        """Take over what the host has written on the page since the last look."""
        times = self._page.changed() if self._page else None
        if times:
            interrupt_at, kill_at = times
            self._shown = [(interrupt_at, signal.SIGINT), (kill_at, signal.SIGKILL)] if interrupt_at else []

    def arm(self, interrupt: float, kill: float) -> None:
        """Have the kernel interrupted in so many seconds, and killed `kill` seconds after that."""
        at = time.monotonic() + interrupt
        self.disarm()
        self._ordered = [(at, signal.SIGINT), (at + kill, signal.SIGKILL)]

    def disarm(self) -> None:
        """Forget what was ordered."""
        self._ordered = []
        if self._wanted == 0:
            self._wanted = None

    def forget(self) -> None:
        """Forget all that is due: the kernel has ended."""
        self._ordered, self._shown, self._wanted = [], [], None

    def interrupt(self, number: int) -> None:
        """Have the run interrupted that was armed by the page's change of this number, 0: by an order."""
        if self._is_armed(number):
            self._wanted = number

    def seconds(self) -> list[float]:
        """Return the seconds until something is due without anyone's word."""
        due = [alarms[0][0] - time.monotonic() for alarms in (self._ordered, self._shown) if alarms]
        return due if self._wanted is None else [*due, TRY_EVERY]

    def due(self, kernel_pid: int) -> Iterator[int]:
        """Yield the signals that are due to the kernel, 0 if there is none."""
        for alarms in (self._ordered, self._shown):
            while alarms and alarms[0][0] <= time.monotonic():
                yield alarms.pop(0)[1]
        if self._wanted is None or not kernel_pid:
            return
        if not self._is_armed(self._wanted):
            self._wanted = None
        elif not ignores(kernel_pid, signal.SIGINT):
            self._wanted = None
            yield signal.SIGINT

    def close(self) -> None:
        """Let go of the page."""
        if self._page:
            self._page.close()

    def _is_armed(self, number: int) -> bool:
        if number == 0:
            return bool(self._ordered)
        return bool(self._shown) and self._page is not None and self._page.number == number
