"""The times at which a kernel is to be interrupted and killed, and interrupts that come before it runs any code.

A kernel ignores interrupts until it runs code. One that the host orders may come in between: the run is armed, and its
request on the way, or waiting while a copy of the kernel is left. Such an interrupt is kept here and sent as soon as
the kernel ignores it no more, unless the run is over by then.

The grace after an interrupt is counted in the kernel's processor time: on a busy machine a kernel may get none for
a while, and would have obeyed. MAX_GRACES bounds it in wall time, for a kernel that sleeps.
"""

import signal
import time
from collections.abc import Callable, Iterator

from ..processes import ignores, processor_time
from ..wire.alarm import MAX_GRACES, AlarmReader

TRY_EVERY = 0.005  # seconds between two looks whether an interrupt can be sent
LOOK_EVERY = 0.05  # seconds between two looks whether the grace was used up


class Alarm:
    """The interrupt of one run, and the kill after it."""

    def __init__(self, interrupt_at: float, grace: float) -> None:
        self.at = interrupt_at
        """The monotonic time of the next step."""
        self._grace = grace
        self._last = interrupt_at + grace * MAX_GRACES
        self._used: float | None = None  # the kernel's processor time at the interrupt
        self.is_over = False

    def ring(self, now: float, used: Callable[[], float]) -> int:
        """Return the signal that is due, 0 for none. `used` returns the processor time of the kernel, in seconds."""
        if self.is_over or now < self.at:
            return 0
        if self._used is None:
            self._used = used()
            self.at = min(now + self._grace, self._last)
            return signal.SIGINT
        if now < self._last and used() - self._used < self._grace:
            self.at = min(now + LOOK_EVERY, self._last)
            return 0
        self.is_over = True
        return signal.SIGKILL

    def ring_early(self, now: float, used: float, grace: float) -> None:
        """Note that the kernel is interrupted before its time, and has another grace from now on."""
        if self._used is None:
            self._used, self._grace, self._last = used, grace, now + grace * MAX_GRACES
            self.at = min(now + grace, self._last)


class Alarms:
    """The signals that are due to the kernel of one supervisor."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[int], float] = processor_time
    ) -> None:
        self._clock = clock
        self._used = used
        self._ordered: Alarm | None = None
        self._shown: Alarm | None = None  # by the page of memory, which knows nothing of the orders
        self._page: AlarmReader | None = None
        self._wanted: int | None = None  # the run that is to be interrupted, by the number it was armed by
        self._grace = 0.0  # that it has then; 0.0: it is not killed

    def read_page(self, descriptor: int) -> None:
        """Look at the host's page from now on, if it has one and was not known."""
        if self._page is None:
            self._page = AlarmReader(descriptor)

    def look_at_page(self) -> None:
        """Take over what the host has written on the page since the last look."""
        times = self._page.changed() if self._page else None
        if times:
            interrupt_at, kill_at = times
            self._shown = Alarm(interrupt_at, kill_at - interrupt_at) if interrupt_at else None

    def arm(self, interrupt: float, kill: float) -> None:
        """Have the kernel interrupted in so many seconds, and killed after a grace of `kill` seconds."""
        self.disarm()
        self._ordered = Alarm(self._clock() + interrupt, kill)

    def disarm(self) -> None:
        """Forget what was ordered."""
        self._ordered = None
        if self._wanted == 0:
            self._wanted = None

    def forget(self) -> None:
        """Forget all that is due: the kernel has ended."""
        self._ordered = self._shown = self._wanted = None

    def interrupt(self, number: int, grace: float) -> None:
        """Have the run interrupted that was armed by the page's change of this number, 0: by an order.

        It is killed after a grace, unless that is 0.
        """
        if self._armed(number):
            self._wanted, self._grace = number, grace

    def seconds(self) -> list[float]:
        """Return the seconds until something is due without anyone's word."""
        due = [alarm.at - self._clock() for alarm in self._alarms()]
        return due if self._wanted is None else [*due, TRY_EVERY]

    def due(self, kernel_pid: int) -> Iterator[int]:
        """Yield the signals that are due to the kernel, 0 if there is none."""
        for alarm in self._alarms():
            if number := alarm.ring(self._clock(), lambda: self._used(kernel_pid)):
                yield number
        if self._wanted is None or not kernel_pid:
            return
        run = self._armed(self._wanted)
        if not run:
            self._wanted = None
        elif not ignores(kernel_pid, signal.SIGINT):
            self._wanted = None
            if self._grace:
                run.ring_early(self._clock(), self._used(kernel_pid), self._grace)
            yield signal.SIGINT

    def close(self) -> None:
        """Let go of the page."""
        if self._page:
            self._page.close()

    def _alarms(self) -> list[Alarm]:
        return [alarm for alarm in (self._ordered, self._shown) if alarm and not alarm.is_over]

    def _armed(self, number: int) -> Alarm | None:
        if number == 0:
            return self._ordered
        return self._shown if self._page and self._page.number == number else None
