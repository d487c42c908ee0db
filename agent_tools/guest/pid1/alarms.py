"""The signals that are due to a kernel: the interrupt and the kill of a time limit, and interrupts that come early.

A kernel ignores SIGINT until it runs code. The host may order an interrupt before that: the request is on its way, or
waits while a copy of the kernel is taken. Such an interrupt is sent as soon as the kernel no longer ignores it,
unless the run is over by then.

The grace after an interrupt is counted in the kernel's processor time: on a busy machine a kernel may get none for a
while, and would have obeyed. MAX_GRACES bounds it in wall time, for a kernel that sleeps.

Python handles a signal that comes right before a system call after this call only. So each interrupt is followed by a
nudge, a signal that ends the call and that programs ignore.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator

from ..processes import ignores, processor_time
from ..wire.words import MAX_GRACES

TRY_EVERY = 0.005  # seconds between two tries to send an early interrupt
ALARM_CHECK_SECONDS = 0.05  # seconds between two looks whether the grace was used up
AGAIN = 0.5  # of the grace, from the interrupt of a cancelled run to the next: code may clean up, or wait for ever
NUDGE = signal.SIGURG
NUDGE_AFTER = 0.1  # seconds from an interrupt


class Alarm:
    """The interrupt of one run, and the kill after it."""

    def __init__(self, interrupt_at: float, grace: float) -> None:
        self.at = interrupt_at
        """The monotonic time of the next step."""
        self._grace = grace
        self._last = interrupt_at + grace * MAX_GRACES
        self._used: float | None = None  # the kernel's processor time at the interrupt
        self._comes_again = False
        self.is_over = False

    def ring(self, now: float, used: Callable[[], float]) -> int:
        """Return the signal that is due, 0 for none. `used` returns the processor time of the kernel, in seconds."""
        if self.is_over or now < self.at:
            return 0
        if self._used is None:
            self._used = used()
            self.at = min(now + self._grace, self._last)
            return signal.SIGINT
        if self._comes_again:
            self._comes_again = False
            self.at = min(now + ALARM_CHECK_SECONDS, self._last)
            return signal.SIGINT
        if now < self._last and used() - self._used < self._grace:
            self.at = min(now + ALARM_CHECK_SECONDS, self._last)
            return 0
        self.is_over = True
        return signal.SIGKILL

    def ring_early(self, now: float, used: float, grace: float) -> None:
        """Note that the kernel is interrupted before its time, and has another grace from now on."""
        if self._used is None:
            self._used, self._grace, self._last = used, grace, now + grace * MAX_GRACES
            self.at, self._comes_again = min(now + AGAIN * grace, self._last), True


class Alarms:
    """The signals that are due to the kernel of one supervisor."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, used: Callable[[int], float] = processor_time
    ) -> None:
        self._clock = clock
        self._used = used
        self._alarm: Alarm | None = None
        self._has_early_interrupt = False
        self._early_grace = 0.0  # after it; 0.0: the kernel is not killed
        self._nudge_at = math.inf

    def arm(self, interrupt: float, kill: float) -> None:
        """Interrupt the kernel in `interrupt` seconds, and kill it after a grace of `kill` seconds."""
        self._alarm, self._has_early_interrupt = Alarm(self._clock() + interrupt, kill), False

    def disarm(self) -> None:
        """Cancel all signals that are due: the run, or the kernel, has ended."""
        self._alarm, self._has_early_interrupt, self._nudge_at = None, False, math.inf

    def interrupt(self, grace: float) -> None:
        """Interrupt the run that is armed, as soon as its code runs; kill it after a grace, unless that is 0."""
        self._has_early_interrupt, self._early_grace = self._alarm is not None, grace

    def seconds(self) -> list[float]:
        """Return the seconds until each signal is due."""
        due = [self._alarm.at] if self._alarm and not self._alarm.is_over else []
        due += [self._nudge_at] if self._nudge_at < math.inf else []
        seconds = [at - self._clock() for at in due]
        return [*seconds, TRY_EVERY] if self._has_early_interrupt else seconds

    def due(self, kernel_pid: int) -> Iterator[int]:
        """Yield the signals that are due to the kernel."""
        if self._clock() >= self._nudge_at:
            self._nudge_at = math.inf
            yield NUDGE
        for number in self._due(kernel_pid):
            if number == signal.SIGINT:
                self._nudge_at = self._clock() + NUDGE_AFTER
            yield number

    def _due(self, kernel_pid: int) -> Iterator[int]:
        if self._alarm and (number := self._alarm.ring(self._clock(), lambda: self._used(kernel_pid))):
            yield number
        if self._alarm and self._has_early_interrupt and kernel_pid and not ignores(kernel_pid, signal.SIGINT):
            self._has_early_interrupt = False
            if self._early_grace:
                self._alarm.ring_early(self._clock(), self._used(kernel_pid), self._early_grace)
            yield signal.SIGINT
